package PostgreSQL::Test::Utils;

# Stands in for PostgreSQL's own module of this name: what the subscription tests use of it.

use strict;
use warnings;
use Exporter 'import';
use IO::Select;

our @EXPORT = qw(slurp_file append_to_file generate_ascii_string $windows_os $use_unix_sockets);
our $windows_os = 0;
our $use_unix_sockets = 0;
our $timeout_default = $ENV{TAP_STATEMENT_TIMEOUT};

sub slurp_file
{
	my ($file, $offset) = @_;
	open(my $in, '<', $file) or CORE::die("could not read \"$file\": $!");
	seek($in, $offset, 0) if $offset;
	local $/;
	my $contents = <$in> // '';
	close $in;
	return $contents;
}

sub append_to_file
{
	my ($file, $text) = @_;
	open(my $out, '>>', $file) or CORE::die("could not write \"$file\": $!");
	print $out $text;
	close $out;
	return;
}

sub generate_ascii_string
{
	my ($from, $to) = @_;
	return join '', map { chr } $from .. $to;
}

# All of two streams, read as it comes; a process that takes longer than it may is killed.
sub read_both
{
	my ($out, $err, $seconds, $pid) = @_;
	my %text = ($out => '', $err => '');
	my $select = IO::Select->new($out, $err);
	my $end = time() + $seconds;
	while ($select->count)
	{
		my $left = $end - time();
		if ($left <= 0)
		{
			kill 'KILL', $pid;
			return ($text{$out}, "$text{$err}ERROR:  no answer within $seconds s");
		}
		for my $stream ($select->can_read($left))
		{
			next if sysread($stream, $text{$stream}, 65536, length $text{$stream});
			$select->remove($stream);
		}
	}
	return ($text{$out}, $text{$err});
}

1;
