package PostgreSQL::Test::Cluster;

# Stands in for PostgreSQL's own module of this name, so that its subscription tests run as they are
# with a Penstock node at one end. The keeper (tests/tap/keeper.py) holds servers and nodes; what a
# test says to one of them goes to its port by psql, word for word, whichever of the two it is.
#
# In one thing this is not PostgreSQL's: where a statement is refused or a wait ends in vain, its
# module dies, and the rest of the file would say nothing. Here the step is written down and the file
# goes on, within a script of several statements too. Nothing is repaired, left out or said otherwise.

use strict;
use warnings;
use Carp;
use IO::Socket::UNIX;
use IPC::Open3;
use JSON::PP;
use Scalar::Util qw(blessed);
use Symbol qw(gensym);
use Test::More ();
use Time::HiRes qw(time usleep);
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Utils;

# A test that gives up goes on here, too.
BEGIN
{
	no warnings 'redefine';
	*CORE::GLOBAL::die = sub {
		my ($package, $file) = caller;
		CORE::die(@_) unless $file =~ /\.pl$/;
		step_failed('die', join '', @_);
		return 0;
	};
}

my $psql = $ENV{TAP_PSQL};
my $json = JSON::PP->new->utf8->canonical;
my $keeper;
my %waited_in_vain;

# ---- what went wrong beside the assertions

sub step_failed
{
	my ($what, $text) = @_;
	$text =~ s/\s+$//;
	$text =~ s/\n/\n#     /g;
	print "# step failed: line " . test_line() . ": $what: $text\n";
	return;
}

sub test_line
{
	for (my $depth = 0; my @frame = caller($depth); $depth++)
	{
		return $frame[2] if $frame[1] =~ /\.pl$/;
	}
	return 0;
}

# ---- servers and nodes

sub ask
{
	my (%request) = @_;
	$keeper //= IO::Socket::UNIX->new(Peer => $ENV{TAP_KEEPER})
	  or CORE::die("the keeper does not answer: $!");
	print $keeper $json->encode(\%request), "\n";
	$keeper->flush;
	my $line = <$keeper>;
	CORE::die("the keeper has gone") unless defined $line;
	my $answer = $json->decode($line);
	step_failed($request{do}, $answer->{error}) if $answer->{error};
	return $answer;
}

sub new
{
	my ($class, $name, %params) = @_;
	my $answer = ask(do => 'new', name => $name);
	return bless { name => $name, %$answer }, $class;
}

sub name { return $_[0]->{name} }
sub host { return '127.0.0.1' }
sub port { return $_[0]->{port} }
sub logfile { return $_[0]->{log} }
sub data_dir { return $_[0]->{folder} }

sub init
{
	my ($self, %params) = @_;
	my $answer = ask(do => 'init', name => $self->name, extra => $params{extra} // []);
	$self->{port} = $answer->{port};
	return;
}

sub start { return ask(do => 'start', name => $_[0]->name) }
sub stop { return ask(do => 'stop', name => $_[0]->name, mode => $_[1] // 'fast') }
sub restart { my ($self) = @_; $self->stop; return $self->start }
sub reload { return ask(do => 'reload', name => $_[0]->name) }

sub append_conf
{
	my ($self, $file, $text) = @_;
	return ask(do => 'append_conf', name => $self->name, file => $file, text => $text);
}

sub adjust_conf
{
	my ($self, $file, $setting, $value) = @_;
	return $self->append_conf($file, "$setting = $value");
}

# One file all the time: what was in it goes.
sub rotate_logfile
{
	my ($self) = @_;
	truncate($self->logfile, 0);
	return $self->logfile;
}

sub connstr
{
	my ($self, $dbname) = @_;
	my $connstr = 'port=' . $self->port . ' host=' . $self->host . ' user=postgres';
	return $connstr unless defined $dbname;
	$dbname =~ s/([\\'])/\\$1/g;
	return "$connstr dbname='$dbname'";
}

# ---- SQL

sub run_psql
{
	my ($arguments, $sql, $seconds) = @_;
	my $errors = gensym;
	my $pid = open3(my $in, my $out, $errors, $psql, '-XAtq', @$arguments, '-f', '-');
	local $SIG{PIPE} = 'IGNORE';
	print $in $sql;
	close $in;
	my ($stdout, $stderr) = PostgreSQL::Test::Utils::read_both($out, $errors, $seconds, $pid);
	waitpid($pid, 0);
	return ($? >> 8 || $? & 127, $stdout, $stderr);
}

sub psql
{
	my ($self, $dbname, $sql, %params) = @_;
	my $connstr = $params{connstr} // $self->connstr($dbname);
	$connstr .= " replication=$params{replication}" if defined $params{replication};
	my @arguments = ('-d', $connstr);
	push @arguments, '-v', 'ON_ERROR_STOP=1' if $params{on_error_stop} // 1;
	push @arguments, @{ $params{extra_params} } if $params{extra_params};
	# The superuser's name is that of who runs PostgreSQL's tests, and in no connection string.
	local $ENV{PGUSER} = 'postgres';
	my ($status, $stdout, $stderr) =
	  run_psql(\@arguments, $sql, $params{timeout} // $PostgreSQL::Test::Utils::timeout_default);
	chomp($stdout, $stderr);
	${ $params{stdout} } = $stdout if $params{stdout};
	${ $params{stderr} } = $stderr if $params{stderr};
	${ $params{timed_out} } = 0 if $params{timed_out};
	return wantarray ? ($status, $stdout, $stderr) : $status;
}

sub safe_psql
{
	my ($self, $dbname, $sql, %params) = @_;
	my ($status, $stdout, $stderr) = $self->psql($dbname, $sql, %params, on_error_stop => 0);
	step_failed($self->name, $stderr) if $status || $stderr =~ /(ERROR|FATAL):/;
	return $stdout;
}

sub background_psql
{
	my ($self, $dbname, %params) = @_;
	return PostgreSQL::Test::BackgroundPsql->new($psql, $self->connstr($dbname), %params);
}

sub check_extension
{
	my ($self, $name) = @_;
	return $self->safe_psql('postgres',
		"SELECT count(*) > 0 FROM pg_available_extensions WHERE name = '$name'") eq 't';
}

# ---- waiting, by PostgreSQL's own queries

# How long: what was waited for in vain once gets a short time from then on.
sub patience
{
	my ($key) = @_;
	return $waited_in_vain{$key} ? $ENV{TAP_SHORT_WAIT} : $ENV{TAP_WAIT};
}

sub wait_until
{
	my ($self, $key, $try, $say) = @_;
	my $end = time() + patience($key);
	my $last;
	do
	{
		(my $done, $last) = $try->();
		if ($done)
		{
			delete $waited_in_vain{$key};
			return 1;
		}
		usleep(200_000);
	} while (time() < $end);
	$waited_in_vain{$key} = 1;
	step_failed($self->name, "waited in vain: $say; last: $last");
	return 0;
}

sub poll_query_until
{
	my ($self, $dbname, $query, $expected, $key) = @_;
	$expected //= 't';
	my $try = sub {
		my ($status, $stdout, $stderr) =
		  run_psql([ '-d', $self->connstr($dbname) ], $query, $PostgreSQL::Test::Utils::timeout_default);
		chomp($stdout, $stderr);
		return ($stdout eq $expected && $stderr eq '', $stdout . $stderr);
	};
	return $self->wait_until($key // $self->name, $try, $query);
}

sub lsn
{
	my ($self, $mode) = @_;
	my %functions = (
		insert => 'pg_current_wal_insert_lsn()',
		flush => 'pg_current_wal_flush_lsn()',
		write => 'pg_current_wal_lsn()',
	);
	return $self->safe_psql('postgres', "SELECT $functions{$mode}");
}

sub wait_for_catchup
{
	my ($self, $standby_name, $mode, $target_lsn) = @_;
	$mode //= 'replay';
	$standby_name = $standby_name->name if blessed($standby_name);
	$target_lsn //= $self->lsn('write');
	my $query = "SELECT '$target_lsn' <= ${mode}_lsn AND state = 'streaming'"
	  . " FROM pg_catalog.pg_stat_replication"
	  . " WHERE application_name IN ('$standby_name', 'walreceiver')";
	$self->poll_query_until('postgres', $query, 't', $standby_name);
	return;
}

sub wait_for_subscription_sync
{
	my ($self, $publisher, $subname, $dbname) = @_;
	$self->poll_query_until($dbname // 'postgres',
		"SELECT count(1) = 0 FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's');",
		't', 'synchronisation of ' . $self->name);
	$publisher->wait_for_catchup($subname) if defined $publisher;
	return;
}

sub wait_for_log
{
	my ($self, $regexp, $offset) = @_;
	$offset //= 0;
	my $log = '';
	my $try = sub {
		$log = slurp_file($self->logfile, $offset);
		return (scalar($log =~ m/$regexp/), substr($log, -300));
	};
	$self->wait_until('log of ' . $self->name, $try, "$regexp in the log");
	return $offset + length $log;
}

sub log_contains
{
	my ($self, $pattern, $offset) = @_;
	return slurp_file($self->logfile, $offset) =~ m/$pattern/;
}

1;
