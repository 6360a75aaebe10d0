//! `dimmer run --dedicate` on a machine with the old hierarchy of cpusets, in which a test can have
//! a cpuset of its own. With version 2, a partition takes its CPUs from all other processes, so
//! that is tested on made-up machines only (`dimmer-host`).

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::time::Duration;

use dimmer_host::root::parse_cpu_list;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::migrate::{SHARED, last_cpu};
use crate::victims::{self, Victims};
use crate::{command, dimmer, stderr, stdout};

/// The usual place of the old hierarchy.
const CPUSETS: &str = "/sys/fs/cgroup/cpuset";

/// A cpuset with all CPUs, and an idle process in it. Removed when this is dropped.
struct Apart {
    group: PathBuf,
    bystander: Child,
}

impl Apart {
    /// If there can be no such cpuset, prints the reason and returns `None`.
    fn new() -> Option<Self> {
        let above = Path::new(CPUSETS);
        let name = format!("dimmer-test.{}", std::process::id());
        let group = above.join(&name);
        let make = || {
            fs::create_dir(&group)?;
            for name in ["cpuset.cpus", "cpuset.mems", "cpuset.cpu_exclusive"] {
                fs::write(group.join(name), fs::read(above.join(name))?)?;
            }
            within(&group, Command::new("sleep").arg("600")).spawn()
        };
        match make() {
            Ok(bystander) => {
                let apart = Self { group, bystander };
                // The shell needs some time.
                while !Path::new(&apart.bystander().0).ends_with(&name) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some(apart)
            }
            Err(why) => {
                println!("SKIPPED: there can be no cpuset {}: {why}", group.display());
                let _ = fs::remove_dir(&group);
                None
            }
        }
    }

    /// Number of groups in the cpuset.
    fn groups(&self) -> usize {
        let entries = fs::read_dir(&self.group).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
    }

    /// The group of the idle process, and the CPUs that it may run on.
    fn bystander(&self) -> (String, String) {
        let of = |file: &str, begin: &str| {
            let text = fs::read_to_string(format!("/proc/{}/{file}", self.bystander.id())).unwrap();
            let found = text.lines().find_map(|line| Some(line.split_once(begin)?.1.to_owned()));
            found.unwrap_or_default()
        };
        // The process may have been moved between two reads.
        loop {
            let (group, cpus) = (of("cgroup", "cpuset:"), of("status", "Cpus_allowed_list:\t"));
            if of("cgroup", "cpuset:") == group {
                return (group, cpus);
            }
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
        let _ = fs::remove_dir(&self.group);
    }
}

/// The command, started by a shell that first enters a cpuset.
fn within(group: &Path, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0/tasks\" && exec \"$@\""]).arg(group);
    shell.arg(command.get_program()).args(command.get_args());
    let changed = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.envs(changed);
    shell
}

#[test]
fn workers_alone_run_on_dedicated_cores_for_as_long_as_the_program_runs() {
    let Some(cpu) = last_cpu() else { return };
    let Some(victims) = Victims::compile(&["dedicated"]) else { return };
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let Some(apart) = Apart::new() else { return };
    victims::library();
    let home = victims.directory.path();
    let run = ["run", "--migrate=kept", "--cpus", &cpu, "--dedicate"];
    let run = command(home, &[&run[..], &["--", &victims.path("dedicated")]].concat());
    let mut run = within(&apart.group, &run);
    let (before, mut meanwhile) = (apart.bystander(), None);
    let mut running = run.stdout(Stdio::piped()).spawn().unwrap();
    while running.try_wait().unwrap().is_none() {
        meanwhile = Some(apart.bystander()).filter(|now| *now != before).or(meanwhile);
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = running.wait_with_output().unwrap();
    let told = stdout(&output);
    assert!(output.status.success(), "{told}");

    let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split(' ').collect()).collect();
    let [parent, child] = lines.as_slice() else { panic!("{told}") };
    let (bystander, bystanders_cpus) = meanwhile.unwrap();
    for (line, who) in [(parent, "parent"), (child, "child")] {
        let [told_by, programs_cpus, workers_cpu, group] = line.as_slice() else {
            panic!("{told}")
        };
        assert_eq!((*told_by, *workers_cpu), (who, cpu.as_str()));
        assert_eq!(bystander, format!("{group}.others"));
        for cpus in [*programs_cpus, &bystanders_cpus] {
            let cpus = parse_cpu_list(cpus).unwrap();
            assert!(cpus.iter().all(|other| other.index().to_string() != cpu), "{told}");
        }
    }
    assert_eq!((apart.bystander(), apart.groups()), (before, 0));
}

#[test]
fn cores_that_a_killed_run_has_left_dedicated_can_be_had() {
    let Some(cpu) = last_cpu() else { return };
    let Some(victims) = Victims::compile(&["dedicated"]) else { return };
    let _alone = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let Some(apart) = Apart::new() else { return };
    victims::library();
    let run = ["run", "--migrate=kept", "--cpus", &cpu, "--dedicate"];
    let program = victims.path("dedicated");
    let run = command(victims.directory.path(), &[&run[..], &["--", &program]].concat());
    let before = apart.bystander();
    let mut first = within(&apart.group, &run);
    let mut killed = first.stdout(Stdio::null()).process_group(0).spawn().unwrap();
    while apart.bystander() == before && killed.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let group = Pid::from_raw(i32::try_from(killed.id()).unwrap()).unwrap();
    let _ = kill_process_group(group, Signal::KILL);
    killed.wait().unwrap();
    assert_eq!(apart.groups(), 2);

    let output = within(&apart.group, &run).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 2);
    assert_eq!((apart.bystander(), apart.groups()), (before, 0));
}

#[test]
fn cores_that_cannot_be_had_are_refused_with_the_reason() {
    let Some(cpu) = last_cpu() else { return };
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    victims::library();
    let machine = tempfile::tempdir().unwrap();
    let refused = |more: &[&str]| {
        let root = machine.path().to_str().unwrap();
        let run = ["--root", root, "run", "--migrate=many", "--cpus", &cpu];
        let program = victims.path("calls");
        let arguments = [&run[..], more, &["--", &program]].concat();
        let output = dimmer(victims.directory.path(), &arguments);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""));
        stderr(&output)
    };
    let told = refused(&["--dedicate"]);
    assert!(told.contains("--dedicate: dedicated cores by cpusets not available"), "{told}");
    for (file, content) in [
        ("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"),
        ("proc/self/cgroup", "0::/"),
        ("sys/fs/cgroup/cgroup.controllers", "cpuset"),
        ("sys/fs/cgroup/jobs/cpuset.cpus.partition", "isolated"),
        ("sys/fs/cgroup/jobs/cpuset.cpus.effective", &cpu),
    ] {
        let file = machine.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let told = refused(&[]);
    let whose = format!("cpu {cpu} is for the control group /sys/fs/cgroup/jobs alone");
    assert!(told.contains(&whose), "{told}");
}
