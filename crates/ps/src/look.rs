//! What `/proc` has of all processes at one moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dimmer_host::group::Group;
use dimmer_host::process;
use dimmer_host::root::Root;

/// All processes with memory of their own, at one moment: not the kernel's threads, nor those that
/// have ended and wait for their parent, nor the process that looks.
#[derive(Clone, Debug)]
pub struct Look {
    /// When it was.
    pub at: Instant,
    /// By number.
    pub processes: BTreeMap<u32, Seen>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// The user whose rights it has.
    pub user: u32,
    /// Its control group.
    pub group: Option<Group>,
    /// Its threads, by number.
    pub threads: BTreeMap<u32, SeenThread>,
}

/// A thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenThread {
    /// Its CPU time.
    pub on_cpu: Duration,
    /// Whether the kernel says when it had values in AVX-512 registers.
    pub says_avx512: bool,
    /// How long that is ago; `None` if it never had.
    pub avx512_before: Option<Duration>,
}

impl Look {
    /// Looks at all processes, or at one. What ends meanwhile may be missing.
    ///
    /// # Cost
    /// Two files for each process and two for each thread, some microseconds each.
    #[must_use]
    pub fn new(root: &Root, only: Option<u32>) -> Self {
        let at = Instant::now();
        let numbers: Vec<u32> = match only {
            Some(pid) => vec![pid],
            None => {
                let names = root.list("/proc").unwrap_or_default();
                let all = names.iter().filter_map(|name| name.parse().ok());
                all.filter(|pid| *pid != std::process::id()).collect()
            }
        };
        let seen = |pid: u32| Some((pid, Seen::new(root, pid)?));
        Self { at, processes: numbers.into_iter().filter_map(seen).collect() }
    }
}

impl Seen {
    fn new(root: &Root, pid: u32) -> Option<Self> {
        let status = root.text(&format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let mut fields = status.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        // What has no memory of its own has no such line (proc(5)).
        field("VmSize")?;
        // The second user is the effective one.
        let user = field("Uid")?.split_whitespace().nth(1)?.parse().ok()?;
        let group = root.text(&format!("/proc/{pid}/cgroup")).ok();
        let threads = process::threads(root, pid).into_iter();
        let threads: BTreeMap<u32, SeenThread> = threads
            .filter_map(|thread| Some((thread, SeenThread::new(root, pid, thread)?)))
            .collect();
        Some(Self {
            name: process::name(root, pid),
            user,
            group: group.and_then(|text| Group::parse(&text)),
            threads,
        })
    }
}

impl SeenThread {
    fn new(root: &Root, pid: u32, thread: u32) -> Option<Self> {
        let schedstat = root.text(&format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        let on_cpu = schedstat.split_whitespace().next()?.parse().ok()?;
        let elapsed = process::avx512_elapsed_ms(root, (pid, thread));
        Some(Self {
            on_cpu: Duration::from_nanos(on_cpu),
            says_avx512: elapsed.is_some(),
            // Below zero: never.
            avx512_before: elapsed.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis),
        })
    }
}
