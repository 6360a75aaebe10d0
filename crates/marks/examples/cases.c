/*
 * Programs that use marks in unusual ways, each by its name.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "swp.h"

static void marks(void) {
    swp_mark("fast", NULL);
    swp_mark("slow", NULL);
    swp_mark("fast", NULL);
}

static void *end_away(void *unused) {
    (void)unused;
    swp_mark("fast", NULL);
    swp_mark("slow", NULL);
    return NULL;
}

/* A text that is another one each time, at the same address. */
static void change(void) {
    char text[8] = "text a";
    for (int i = 0; i < 4; i++) {
        text[5] = (char)('a' + i % 2);
        swp_mark(text, NULL);
    }
}

static void child(void) {
    pid_t process;
    marks();
    swp_mark("slow", NULL);
    fflush(stdout);
    process = fork();
    if (process == 0) {
        marks();
        marks();
        printf("child\n");
        exit(0);
    }
    waitpid(process, NULL, 0);
    marks();
}

int main(int count, char **arguments) {
    const char *which = count > 1 ? arguments[1] : "";
    pthread_t thread;
    if (strcmp(which, "before") == 0) {
        marks();
    }
    swp_init();
    if (strcmp(which, "twice") == 0) {
        marks();
        swp_init();
    }
    if (strcmp(which, "away") == 0) {
        pthread_create(&thread, NULL, end_away, NULL);
        pthread_join(thread, NULL);
    }
    if (strcmp(which, "change") == 0) {
        change();
    }
    if (strcmp(which, "fork") == 0) {
        child();
    }
    marks();
    if (strcmp(which, "exit") != 0) {
        swp_deinit();
    }
    if (strcmp(which, "after") == 0) {
        marks();
        marks();
        swp_deinit();
    }
    printf("done\n");
    return 0;
}
