//! Made-up hosts, looked at twice.

use super::*;

/// A made-up host with files below a directory.
struct Made {
    directory: tempfile::TempDir,
}

impl Made {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> Root {
        Root::new(self.directory.path())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A process with threads of this CPU time (ms) and this content of `arch_status`.
    fn process(&self, pid: u32, name: &str, threads: &[(u64, &str)]) {
        let status = format!("Name:\t{name}\nUid:\t0\t33\t0\t0\nVmSize:\t  10 kB\n");
        self.write(&format!("/proc/{pid}/status"), &status);
        self.write(&format!("/proc/{pid}/comm"), &format!("{name}\n"));
        self.write(&format!("/proc/{pid}/cgroup"), "0::/system.slice/a.service\n");
        for (number, (ms, arch)) in threads.iter().enumerate() {
            let task = format!("/proc/{pid}/task/{}", pid + u32::try_from(number).unwrap());
            self.write(&format!("{task}/schedstat"), &format!("{} 1 1\n", ms * 1_000_000));
            self.write(&format!("{task}/arch_status"), arch);
        }
    }
}

/// The looks at a host before and after `change`, a second apart.
fn host(made: &Made, change: impl FnOnce(&Made)) -> Host {
    let before = Look::new(&made.root(), None);
    change(made);
    let mut after = Look::new(&made.root(), None);
    after.at = before.at + Duration::from_secs(1);
    Host::between(&before, &after)
}

#[test]
fn those_that_use_avx512_come_first_then_the_busy_ones() {
    const NEVER: &str = "AVX512_elapsed_ms:\t-1\n";
    let made = Made::new();
    made.process(10, "idle", &[(100, NEVER)]);
    made.process(20, "busy", &[(100, NEVER), (100, NEVER)]);
    made.process(30, "wide", &[(5, "AVX512_elapsed_ms:\t1500\n"), (5, NEVER)]);
    made.write("/proc/40/status", "Name:\tkworker\nUid:\t0\t0\t0\t0\n");
    made.write("/proc/uptime", "1 1\n");
    let found = host(&made, |made| {
        made.process(20, "busy", &[(900, NEVER), (800, "AVX512_elapsed_ms:\t1001\n")]);
        made.process(30, "wide", &[(5, "AVX512_elapsed_ms:\t999\n"), (25, NEVER)]);
        made.process(50, "new", &[(500, NEVER)]);
    });
    let rows = found.processes.iter().map(|process| {
        let rounded = (process.cpus * 1000.0).round();
        (process.pid, process.name.as_str(), rounded, process.avx512_threads)
    });
    let expected = [
        (30, "wide", 20.0, Some(1)),
        (20, "busy", 1500.0, Some(0)),
        (50, "new", 500.0, Some(0)),
        (10, "idle", 0.0, Some(0)),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    assert!(found.knows_avx512);
    let [wide, busy, _, idle] = &found.processes[..] else { unreachable!() };
    assert_eq!(wide.avx512_before, Some(Duration::from_millis(999)));
    assert_eq!(busy.avx512_before, Some(Duration::from_millis(1001)));
    assert_eq!((idle.avx512_before, idle.is_busy(), busy.is_busy()), (None, false, true));
    assert_eq!(wide.user, 33);
    assert_eq!(wide.group.as_ref().unwrap().name(), "a.service");
}

/// Kernels without `arch_status`, or processors without AVX-512: not known, which is not "none".
#[test]
fn what_the_kernel_does_not_say_is_not_known() {
    let made = Made::new();
    made.process(10, "one", &[(1, "")]);
    made.process(20, "other", &[(1, "AVX512_elapsed_ms:\tmany\n")]);
    let found = host(&made, |_| ());
    assert!(!found.knows_avx512);
    assert!(found.processes.iter().all(|one| one.avx512_threads.is_none() && !one.uses_avx512()));
}

#[test]
fn code_is_that_of_mapped_files_and_unreadable_ones_say_why() {
    let made = Made::new();
    for pid in [10, 20, 30] {
        made.process(pid, "one", &[(1, "")]);
    }
    let maps = "666-777 r-xp 00001000 fe:00 1   /bin/app\n\
                777-888 r-xp 00000000 fe:00 2   /lib/old.so (deleted)\n";
    made.write("/proc/10/maps", maps);
    std::os::unix::fs::symlink("/bin/app", made.directory.path().join("proc/10/exe")).unwrap();
    let mut found = host(&made, |_| ());
    let mut codes = Codes::open(Vec::new());
    found.find_code(&made.root(), &mut codes, |process| process.pid != 30, |_| true);
    let of = |pid: u32| found.processes.iter().find(|one| one.pid == pid).unwrap().code.clone();
    assert_eq!((of(10), of(30)), (None, None));
    // Neither the program nor the library is there.
    assert_eq!(found.processes.iter().map(|one| one.unknown_files).sum::<usize>(), 2);
    assert!(of(20).unwrap().unwrap_err().contains("/proc/20/exe"));
}

#[test]
fn groups_have_the_sums_of_their_processes() {
    let made = Made::new();
    made.process(10, "one", &[(1, "AVX512_elapsed_ms:\t3\n"), (1, "AVX512_elapsed_ms:\t2\n")]);
    made.process(20, "other", &[(1, "")]);
    made.process(30, "third", &[(1, "")]);
    made.write("/proc/30/cgroup", "0::/system.slice/b.service\n");
    let found = host(&made, |made| {
        made.write("/proc/20/task/20/schedstat", "501000000 1 1");
        made.write("/proc/30/task/30/schedstat", "901000000 1 1");
    });
    let sums = found.groups().into_iter().map(|sum| {
        let cpus = (sum.cpus * 1000.0).round();
        (sum.name.unwrap(), sum.processes, sum.threads, cpus, sum.avx512_processes)
    });
    let expected =
        [("a.service".to_owned(), 2, 3, 500.0, 1), ("b.service".to_owned(), 1, 1, 900.0, 0)];
    assert_eq!(sums.collect::<Vec<_>>(), expected);
}
