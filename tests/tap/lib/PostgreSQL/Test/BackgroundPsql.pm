package PostgreSQL::Test::BackgroundPsql;

# Stands in for PostgreSQL's own module of this name: a psql that stays, for transactions which a test
# holds open while other sessions go on.

use strict;
use warnings;
use IO::Select;
use IPC::Open2;
use Time::HiRes qw(time);

my $marker = 'background_psql: done';

sub new
{
	my ($class, $psql, $connstr, %params) = @_;
	my @stop = $params{on_error_stop} // 1 ? ('-v', 'ON_ERROR_STOP=1') : ();
	my $self = bless { command => [ $psql, '-XAtq', '-d', $connstr, @stop, '-f', '-' ] }, $class;
	$self->_start;
	return $self;
}

sub _start
{
	my ($self) = @_;
	$self->{pid} = open2(my $out, my $in, @{ $self->{command} });
	@$self{qw(in out)} = ($in, $out);
	return;
}

# What PostgreSQL's module is made of starts a psql that has ended once more where it is used again.
sub _input
{
	my ($self) = @_;
	$self->_start unless $self->{pid};
	return $self->{in};
}

sub query
{
	my ($self, $query) = @_;
	my $in = $self->_input;
	local $SIG{PIPE} = 'IGNORE';
	print $in "$query\n;\n\\echo $marker\n";
	$in->flush;
	return $self->read_until(qr/^\Q$marker\E\n/m);
}

sub query_safe { my ($self, $query) = @_; return $self->query($query) }

sub query_until
{
	my ($self, $until, $query) = @_;
	my $in = $self->_input;
	local $SIG{PIPE} = 'IGNORE';
	print $in $query;
	$in->flush;
	return $self->read_until($until);
}

sub read_until
{
	my ($self, $until) = @_;
	my $select = IO::Select->new($self->{out});
	my $end = time() + $ENV{TAP_STATEMENT_TIMEOUT};
	my $text = '';
	while (time() < $end)
	{
		next unless $select->can_read(0.5);
		last unless sysread($self->{out}, $text, 65536, length $text);
		next unless $text =~ $until;
		$text =~ s/$until//;
		chomp $text;
		return $text;
	}
	PostgreSQL::Test::Cluster::step_failed('background psql', "no answer; so far: $text");
	return $text;
}

sub quit
{
	my ($self) = @_;
	close $self->{in};
	close $self->{out};
	waitpid($self->{pid}, 0);
	delete @$self{qw(pid in out)};
	return 1;
}

sub set_query_timer_restart { return }

1;
