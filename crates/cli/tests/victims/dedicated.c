// Calls a function until its calls are moved. Then prints which CPUs the program, and the thread
// that the calls are moved to, may run on, and that thread's control group. A child does the same.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_S = 60 };

// Takes longer than any move there and back.
__attribute__((noinline, noclone, noipa)) long kept(void) {
    volatile long sum = 0;
    for (long i = 0; i < 4000000; i++)
        sum += i;
    return sum;
}

// The rest of the line that contains `begin`, in a file of a thread.
static const char *rest(const char *thread, const char *file, const char *begin) {
    static char line[512];
    char path[512];
    snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, file);
    FILE *from = fopen(path, "r");
    while (from && fgets(line, sizeof line, from)) {
        char *found = strstr(line, begin);
        if (found) {
            fclose(from);
            line[strcspn(line, "\n")] = 0;
            return found + strlen(begin);
        }
    }
    if (from)
        fclose(from);
    return "";
}

static int tell(const char *who) {
    for (time_t end = time(NULL) + PATIENCE_S; time(NULL) < end;) {
        kept();
        DIR *threads = opendir("/proc/self/task");
        for (struct dirent *thread; (thread = readdir(threads));) {
            if (strncmp(rest(thread->d_name, "comm", ""), "dimmer-", 7) != 0)
                continue;
            char own[16];
            snprintf(own, sizeof own, "%d", getpid());
            printf("%s %s", who, rest(own, "status", "Cpus_allowed_list:\t"));
            printf(" %s", rest(thread->d_name, "status", "Cpus_allowed_list:\t"));
            printf(" %s\n", rest(thread->d_name, "cgroup", "cpuset:"));
            fflush(stdout);
            closedir(threads);
            return 0;
        }
        closedir(threads);
    }
    printf("%s: nothing has moved\n", who);
    return 1;
}

int main(void) {
    if (tell("parent"))
        return 1;
    pid_t child = fork();
    if (child == 0)
        return tell("child");
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
