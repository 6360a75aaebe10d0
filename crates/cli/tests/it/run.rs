//! `dimmer run` on programs that the test compiles.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{command, dimmer, stderr, stdout, victims};

/// Prints what CPUID shows in several places, and does what its argument says.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <cpuid.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void show(const char *where) {
    unsigned a, b, c, d;
    __cpuid_count(7, 0, a, b, c, d);
    printf("%s: avx512f %u, avx2 %u, bmi2 %u\n", where, b >> 16 & 1, b >> 5 & 1, b >> 8 & 1);
    fflush(stdout);
}

static void *thread(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    show("thread");
    return unused;
}

static sigjmp_buf before;

static void leave(int signal, siginfo_t *info, void *context) {
    (void)context;
    printf("handler: signal %d at %p\n", signal, info->si_addr);
    fflush(stdout);
    siglongjmp(before, 1);
}

static void end(int signal) { _exit(64 + signal); }

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    show("main");
    if (!strcmp(what, "threads")) {
        pthread_t other;
        pthread_create(&other, NULL, thread, NULL);
        pthread_join(other, NULL);
        if (!fork()) {
            show("child");
            exit(0);
        }
        wait(NULL);
    } else if (!strcmp(what, "handler")) {
        struct sigaction action, old;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = leave;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, &old);
        printf("before: %s\n", old.sa_handler == SIG_DFL ? "default" : "other");
        sigaction(SIGSEGV, NULL, &old);
        printf("now: %s\n", old.sa_sigaction == leave && old.sa_flags & SA_SIGINFO ? "own" : "other");
        show("with a handler");
        if (!sigsetjmp(before, 1))
            *(volatile int *)16 = 1;
        if (signal(SIGSEGV, end) != (void (*)(int))leave)
            puts("lost the handler");
        fflush(stdout);
        *(volatile int *)16 = 1;
    } else if (!strcmp(what, "crash")) {
        *(volatile int *)16 = 1;
    } else if (!strcmp(what, "privileged")) {
        __asm__ volatile("hlt");
    } else if (!strcmp(what, "raise")) {
        raise(SIGSEGV);
    } else if (!strcmp(what, "exit")) {
        return 7;
    }
    return 0;
}
"#;

/// The compiled program; if it cannot run correctly here, prints the reason and returns `None`.
fn program(directory: &Path) -> Option<PathBuf> {
    victims::library();
    if let Err(unavailable) = dimmer_host::faulting::check() {
        println!("SKIPPED: {unavailable}");
        return None;
    }
    let source = directory.join("program.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let file = directory.join("program");
    let compiled =
        Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&file).arg(&source).output();
    match compiled {
        Ok(compiled) if compiled.status.success() => Some(file),
        Ok(compiled) => {
            println!(
                "SKIPPED: cc does not compile: {}",
                stderr(&compiled).lines().next().unwrap_or("")
            );
            None
        }
        Err(error) => {
            println!("SKIPPED: no C compiler: {error}");
            None
        }
    }
}

/// Runs the program under `dimmer run` with `options`.
fn narrow(directory: &Path, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
    let mut command = command(directory, &["run", "--narrow"]);
    command.env_remove("GLIBC_TUNABLES").env_remove("LD_PRELOAD").env_remove("DIMMER_CPUID_WIDTH");
    command.args(options).arg("--").arg(program).args(arguments).output().unwrap()
}

#[test]
fn cpuid_shows_nothing_wider_than_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let Some(program) = program(home.path()) else { return };
    let truth = stdout(&Command::new(&program).output().unwrap());
    let shown = |avx2: bool| {
        let mut bits = truth.replace("avx512f 1", "avx512f 0");
        if !avx2 {
            bits = bits.replace("avx2 1", "avx2 0");
        }
        bits
    };
    for (options, expected) in [
        (&[][..], shown(true)),
        (&["--width", "256"], shown(true)),
        (&["--width", "128"], shown(false)),
        (&["--only", "glibc"], truth.clone()),
    ] {
        let output = narrow(home.path(), options, &program, &[]);
        assert_eq!(stdout(&output), expected, "{options:?}: {}", stderr(&output));
    }
    let output = narrow(home.path(), &[], &program, &["threads"]);
    let lines = ["main", "thread", "child"].map(|place| shown(true).replace("main", place));
    assert_eq!(stdout(&output), lines.concat(), "{}", stderr(&output));
}

#[test]
fn programs_keep_their_own_handlers_for_faults() {
    let home = tempfile::tempdir().unwrap();
    let Some(program) = program(home.path()) else { return };
    let output = narrow(home.path(), &[], &program, &["handler"]);
    let told = stdout(&output);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[1..3], ["before: default", "now: own"], "{told}");
    assert!(lines[3].starts_with("with a handler: avx512f 0"), "{told}");
    assert_eq!(lines[4..], ["handler: signal 11 at 0x10"], "{told}");
    assert_eq!(output.status.code(), Some(64 + 11), "{}", stderr(&output));
}

#[test]
fn crashes_and_exit_statuses_stay_what_they_are() {
    let home = tempfile::tempdir().unwrap();
    let Some(program) = program(home.path()) else { return };
    for way in ["crash", "privileged", "raise"] {
        let itself = Command::new(&program).arg(way).current_dir(&home).output().unwrap();
        assert_eq!(itself.status.signal(), Some(11));
        let output = narrow(home.path(), &[], &program, &[way]);
        assert_eq!(output.status.code(), Some(128 + 11), "{way}: {}", stderr(&output));
    }
    let output = narrow(home.path(), &[], &program, &["exit"]);
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn what_is_set_is_told_and_what_the_user_has_set_is_merged() {
    let home = tempfile::tempdir().unwrap();
    victims::library();
    let mut command = command(home.path(), &["run", "--narrow", "--only", "glibc,libcrypto"]);
    command.env("GLIBC_TUNABLES", "glibc.malloc.check=0").env("OPENSSL_ia32cap", "nonsense");
    let shell = [
        "--",
        "sh",
        "-c",
        "echo $GLIBC_TUNABLES; echo $OPENSSL_ia32cap; echo ${DIMMER_CPUID_WIDTH-none}",
    ];
    let output = command.args(shell).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stdout(&output);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("glibc.malloc.check=0:glibc.cpu.hwcaps=-AVX512F,"), "{told}");
    assert_eq!(lines[1..], ["nonsense", "none"]);
    let told = stderr(&output);
    assert!(told.contains(&format!("GLIBC_TUNABLES={}\n", lines[0])), "{told}");
    assert!(told.contains("not applied: OPENSSL_ia32cap=nonsense was set already"), "{told}");
}

#[test]
fn processor_without_wider_vectors_is_told() {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has_wider = flags.split_whitespace().any(|flag| matches!(flag, "avx512f" | "amx_tile"));
    let home = tempfile::tempdir().unwrap();
    for (width, is_told) in [("256", !has_wider), ("128", false)] {
        let narrow = ["run", "--narrow", "--only", "glibc", "--width", width, "--"];
        let output = command(home.path(), &narrow).arg("true").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).starts_with("Nothing to narrow to 256 bits"), is_told);
    }
}

#[test]
fn commands_in_each_other_preload_one_library() {
    let home = tempfile::tempdir().unwrap();
    if program(home.path()).is_none() {
        return;
    }
    let own = env!("CARGO_BIN_EXE_dimmer");
    let narrow = ["run", "--narrow", "--only", "cpuid", "--"];
    let shell = ["sh", "-c", "echo $LD_PRELOAD $DIMMER_CPUID_WIDTH"];
    let arguments = [&narrow[..], &[own], &narrow[..], &shell[..]].concat();
    let output = command(home.path(), &arguments).env_remove("LD_PRELOAD").output().unwrap();
    let told = stdout(&output);
    assert_eq!(told.matches("libdimmer_preload.so").count(), 1, "{told}{}", stderr(&output));
    assert!(told.ends_with(" 256\n"), "{told}");
}

#[test]
fn what_cannot_be_narrowed_is_refused() {
    let home = tempfile::tempdir().unwrap();
    #[track_caller]
    fn check(home: &Path, arguments: &[&str], says: &str) {
        let output = dimmer(home, &[&["run"], arguments].concat());
        let told = stderr(&output);
        assert!(matches!(output.status.code(), Some(125 | 127)), "{told}");
        assert!(told.contains(says), "{told}");
        assert!(output.stdout.is_empty());
    }
    let home = home.path();
    let narrow = ["--narrow"];
    check(home, &["--", "true"], "expected at least one of\n  --narrow ");
    check(home, &["--wide", "--", "true"], "--wide");
    let only = [&narrow[..], &["--only", "openssl", "--", "true"]].concat();
    check(home, &only, "unknown switch `openssl`; expected one of glibc, libcrypto, openblas");
    check(home, &[&narrow[..], &["--width", "64", "--", "true"]].concat(), "expected 256 or 128");
    check(
        home,
        &[&narrow[..], &["--", "no-such-program"]].concat(),
        "no program `no-such-program`",
    );
}
