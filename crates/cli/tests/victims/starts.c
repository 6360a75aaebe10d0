// Starts a program by each function that exists for that, and prints the result of each one that
// fails. Called as `shows`, it prints the list of libraries that the program's loader is given, and
// its arguments.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int show(int count, char **words) {
    const char *libraries = getenv("LD_PRELOAD");
    printf("%s: LD_PRELOAD %s,", words[1], libraries ? libraries : "not set");
    for (int word = 2; word < count; word++)
        printf(" %s", words[word]);
    printf(", OTHER %s\n", getenv("OTHER") ? getenv("OTHER") : "not set");
    return 0;
}

static const char *const functions[] = {
    "execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle",
    "fexecve", "execveat", "posix_spawn", "posix_spawnp",
};

static int start(const char *function, const char *directory, char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    char *words[] = {"shows", (char *)function, "one", "two", "three", "four", "five", "six", NULL};
    char other[] = "OTHER=as given";
    char *given[1000] = {other};
    int count = 1;
    for (char **variable = environ; *variable && count < 999; variable++)
        given[count++] = *variable;
    pid_t process;
    if (!strcmp(function, "execve")) return execve(path, words, given);
    if (!strcmp(function, "execv")) return execv(path, words);
    if (!strcmp(function, "execvp")) return execvp(name, words);
    if (!strcmp(function, "execvpe")) return execvpe(name, words, given);
    if (!strcmp(function, "execl"))
        return execl(path, "shows", function, "one", "two", "three", "four", "five", "six", NULL);
    if (!strcmp(function, "execlp"))
        return execlp(name, "shows", function, "one", "two", "three", "four", "five", "six", NULL);
    if (!strcmp(function, "execle"))
        return execle(path, "shows", function, "one", "two", "three", "four", "five", "six", NULL, given);
    if (!strcmp(function, "fexecve")) return fexecve(open(path, O_RDONLY), words, given);
    if (!strcmp(function, "execveat"))
        return execveat(open(directory, O_RDONLY), name, words, given, 0);
    int failed = !strcmp(function, "posix_spawn") ? posix_spawn(&process, path, NULL, NULL, words, given)
                                                  : posix_spawnp(&process, name, NULL, NULL, words, given);
    if (failed) {
        errno = failed;
        return -1;
    }
    int status;
    waitpid(process, &status, 0);
    _exit(WEXITSTATUS(status));
}

static void all(const char *directory, char *name) {
    for (size_t at = 0; at < sizeof functions / sizeof *functions; at++) {
        pid_t child = at % 2 ? fork() : vfork();
        if (child == 0) {
            start(functions[at], directory, name);
            dprintf(1, "%s of %s: %s\n", functions[at], name, strerror(errno));
            _exit(1);
        }
        int status;
        waitpid(child, &status, 0);
    }
}

// What the kernel cannot read.
static void refused(void) {
    char *bad = (char *)1, *words[] = {"shows", NULL}, *given[] = {bad, NULL};
    execve(bad, words, environ);
    printf("execve of no string: %s\n", strerror(errno));
    execve("/bin/true", words, given);
    printf("execve with no variable: %s\n", strerror(errno));
    execve("/bin/true", words, (char **)8);
    printf("execve without an environment: %s\n", strerror(errno));
    execveat(AT_FDCWD, bad, words, environ, 0);
    printf("execveat of no string: %s\n", strerror(errno));
    int failed = posix_spawn(&(pid_t){0}, bad, NULL, NULL, words, environ);
    printf("posix_spawn of no string: %s\n", strerror(failed));
}

int main(int count, char **words) {
    if (strcmp(words[0], "shows") == 0) return show(count, words);
    setvbuf(stdout, NULL, _IONBF, 0);
    // More variables than fit on the stack.
    for (int number = 0; number < atoi(words[1]); number++) {
        char variable[32];
        snprintf(variable, sizeof variable, "MANY_%d", number);
        setenv(variable, "here", 1);
    }
    setenv("PATH", words[2], 1);
    for (int word = 3; word < count; word++)
        all(words[2], words[word]);
    refused();
    return 0;
}
