//! What the server verifies of a program that asks for clocks: the program writes on its board what
//! it likes.
//!
//! A process is the one that connected (`SO_PEERCRED`, unix(7)), with the time of its start, so
//! that a later process with the same number is another one. Threads are looked for among those of
//! this process alone.

use std::fs;

use dimmer_host::root::Root;
use dimmer_host::{affinity, process};
use dimmer_pace::{Request, dedicated_thread};
use dimmer_processor::units::CpuId;
use dimmer_protocol::OnBoard;

/// A process that has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    number: i32,
    user: u32,
    started: u64,
}

impl Process {
    /// The process with this number (0: the server cannot see it), which connected as `user`.
    ///
    /// # Errors
    /// Why its requests cannot count: it has ended, its user has changed, or it is in another PID
    /// namespace, where threads have other numbers.
    pub(crate) fn of(number: i32, user: u32) -> Result<Self, String> {
        if number == 0 {
            return Err("it is in a PID namespace that the server cannot see".to_owned());
        }
        let directory = format!("/proc/{number}");
        let missing = || format!("the server cannot read {directory}");
        let began = process::began(&Root::live(), number.unsigned_abs());
        let started = began.ok_or_else(missing)?;
        let status = fs::read_to_string(format!("{directory}/status")).map_err(|_| missing())?;
        verify(&status, user)?;
        Ok(Self { number, user, started })
    }

    /// Its user.
    pub(crate) const fn user(&self) -> u32 {
        self.user
    }

    /// Whether it has not ended.
    pub(crate) fn lives(&self) -> bool {
        process::began(&Root::live(), self.number.unsigned_abs()) == Some(self.started)
    }

    /// When the thread of a request was started (clock ticks since the machine was); `None`: the
    /// request does not count. It must be for a thread of this process and a CPU that the thread
    /// may use. A dedicated CPU ([`dedicated_thread`]) may be requested for the fastest clock only.
    /// The affinity of its thread does not count: threads go there by changing theirs.
    pub(crate) fn thread(&self, own: OnBoard) -> Option<u64> {
        let cpu = CpuId::new(own.cpu);
        if own.thread == dedicated_thread(cpu) {
            return (own.number == Request::TURBO.number() && self.lives()).then_some(self.started);
        }
        let thread = (self.number.unsigned_abs(), own.thread);
        let started = process::thread_began(&Root::live(), thread)?;
        let allowed = affinity::allowed_to(own.thread).ok()?;
        allowed.contains(&cpu).then_some(started)
    }
}

/// Compares the user, and looks for the numbers of other PID namespaces (proc(5): `NSpid`).
fn verify(status: &str, user: u32) -> Result<(), String> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let users = field("Uid:").unwrap_or_default();
    // Real, effective, saved, of files.
    let effective = users.split_whitespace().nth(1).and_then(|user| user.parse().ok());
    if effective != Some(user) {
        return Err(format!("it connected as user {user}, and is another one's now: {users}"));
    }
    let numbers = field("NSpid:").unwrap_or_default();
    if numbers.split_whitespace().count() > 1 {
        return Err(format!("it is in another PID namespace than the server: {numbers}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::channel;

    use super::*;

    fn own() -> Process {
        let number = std::process::id().cast_signed();
        Process::of(number, rustix::process::geteuid().as_raw()).unwrap()
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn threads_of_the_process_count_and_no_others() {
        let process = own();
        let cpu = affinity::allowed().unwrap()[0].index();
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = ended.recv();
        });
        let on = |thread, cpu| OnBoard { thread, cpu, number: 100 };
        let number = told.recv().unwrap();
        assert!(process.thread(on(number, cpu)).is_some());
        assert_eq!(process.thread(on(number, 0xff_fffe)), None, "no such CPU");
        drop(end);
        thread.join().unwrap();
        assert_eq!(process.thread(on(number, cpu)), None, "it has ended");
        // Also as root, and for a process of the same user.
        let mut other = sleeper();
        assert_eq!(process.thread(on(other.id(), cpu)), None, "of another process");
        assert_eq!(process.thread(on(1, cpu)), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_dedicated_cpu_may_be_requested_for_the_fastest_clock_only() {
        let process = own();
        let of = |cpu: u32, number| OnBoard { thread: u32::MAX - cpu, cpu, number };
        assert!(process.thread(of(3, Request::TURBO.number())).is_some());
        assert_eq!(process.thread(of(3, Request::SLOW.number())), None);
        assert_eq!(process.thread(of(3, 100)), None);
        let other = OnBoard { cpu: 4, ..of(3, Request::TURBO.number()) };
        assert_eq!(process.thread(other), None);
    }

    #[test]
    fn a_process_that_has_ended_or_has_another_user_is_none() {
        let user = rustix::process::geteuid().as_raw();
        let mut child = sleeper();
        let number = child.id().cast_signed();
        let process = Process::of(number, user).unwrap();
        assert!(process.lives());
        let other = Process::of(number, user.wrapping_add(1)).unwrap_err();
        assert!(other.contains("is another one's now"), "{other}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.lives());
        assert!(Process::of(number, user).is_err() && Process::of(0, user).is_err());
        // A later process with the same number.
        assert!(!Process { started: own().started + 1, ..own() }.lives());
    }

    #[test]
    fn a_process_of_a_child_pid_namespace_is_refused() {
        let status = "Name:\tx\nUid:\t1\t7\t7\t7\nNSpid:\t4711\t5\n";
        assert!(verify(status, 7).unwrap_err().contains("PID namespace"), "{status}");
        assert_eq!(verify(&status.replace("\t5", ""), 7), Ok(()));
        assert_eq!(verify("Uid:\t1\t7\t7\t7\n", 7), Ok(()), "Linux before 4.1");
        assert!(verify(status, 1).is_err() && verify("", 0).is_err());
    }

    /// The same with a real one, if this machine lets the test make one.
    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
    fn a_real_child_pid_namespace_is_refused() {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sleep"]);
        let started = command.arg("1000").stderr(Stdio::null()).spawn();
        let Ok(mut unshare) = started else {
            println!("SKIPPED: there is no program unshare");
            return;
        };
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let child = loop {
            // Kernels without CONFIG_PROC_CHILDREN have no such file.
            let Ok(found) = fs::read_to_string(&children) else { break None };
            if let Some(child) = found.split_whitespace().next() {
                break Some(child.parse().unwrap());
            }
            if unshare.try_wait().unwrap().is_some() {
                break None;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        match child {
            Some(child) => {
                let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
                let user = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
                let user = user.split_whitespace().nth(1).unwrap().parse().unwrap();
                let why = Process::of(child, user).unwrap_err();
                assert!(why.contains("PID namespace"), "{why}");
            }
            None => println!("SKIPPED: this process may not make a PID namespace"),
        }
        let _ = unshare.kill();
        let _ = unshare.wait();
    }
}
