/* Receives three real-time signals, and says whether each came with its sender's id as its value.
 * With an argument: sends one such signal to the process with that id. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	if (count == 2)
		return sigqueue(atoi(arguments[1]), SIGRTMIN + 1,
				(union sigval){.sival_int = getpid()});
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	setlinebuf(stdout);
	puts("ready");
	for (int received = 0; received < 3; received++) {
		siginfo_t info;
		sigwaitinfo(&set, &info);
		puts(info.si_value.sival_int == info.si_pid ? "its own" : "another's");
	}
	return 0;
}
