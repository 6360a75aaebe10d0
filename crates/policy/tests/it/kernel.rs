//! The scheduler of `bpf/` decides as the policy does: each decision that it recorded while a
//! kernel ran under it is made again.
//!
//! `DIMMER_KERNEL_DECISIONS` names a file of `dimmer-specialise run --record`; without it, these
//! are decisions of runs of `make test-kernel`, each kind once.

use std::env;
use std::fs;

use dimmer_policy::specialise::{
    Class, Core, Interrupts, goes_on, home, may_take, rank, to_interrupt,
};
use dimmer_processor::units::{CoreId, LicenseLevel, Nanos, NodeId};

const RECORDED: &str = include_str!("decisions.txt");

fn level(number: i64) -> LicenseLevel {
    LicenseLevel::new(u32::try_from(number).expect("a level"))
}

fn class(number: i64) -> Class {
    match number {
        0 => Class::Default,
        1 => Class::Normal,
        2 => Class::Wide(level(1)),
        other => panic!("no class: {other}"),
    }
}

fn number(word: &str) -> i64 {
    word.parse().unwrap_or_else(|_| panic!("no number: {word}"))
}

/// `taken cpu C level L class K narrow N wide W rank R`: whether the policy takes it at that rank.
fn taken(words: &[&str]) -> bool {
    let ["cpu", _, "level", core, "class", asked, "narrow", narrow, "wide", wide, "rank", found] =
        words
    else {
        panic!("not a thread that was taken: {words:?}");
    };
    let allowed = [(narrow, 0), (wide, 1)];
    let levels = allowed.iter().filter(|(has, _)| **has == "1").map(|(_, of)| level(*of));
    let asked = class(number(asked));
    let expected = rank(level(number(core)), asked, home(asked, levels));
    expected.map(i64::from) == Some(number(found))
}

/// `chosen CORE from FROM cpus LEVEL:NODE:RUNS:MAY...`: whether the policy interrupts that core.
fn chosen(words: &[&str]) -> bool {
    let [found, "from", from, "cpus", cores @ ..] = words else {
        panic!("not a choice: {words:?}");
    };
    let core = |index: usize| {
        let fields: Vec<i64> = cores[index].split(':').map(number).collect();
        let [of, node, runs, may] = fields[..] else { panic!("not a core: {}", cores[index]) };
        let id = u32::try_from(index).expect("a core");
        let node = u32::try_from(node).expect("a node");
        let core = Core {
            id: CoreId::new(id),
            level: level(of),
            node: Some(NodeId::new(node)),
            runs: (runs >= 0).then(|| level(runs)),
        };
        (core, may == 1)
    };
    let all: Vec<(Core, bool)> = (0..cores.len()).map(core).collect();
    let allowed: Vec<Core> = all.iter().filter(|(_, may)| *may).map(|(core, _)| *core).collect();
    let from = all[usize::try_from(number(from)).expect("a core")].0;
    let distance = |one: CoreId, other: CoreId| one.index().abs_diff(other.index());
    let nearest = Interrupts::Nearest(distance);
    let expected = to_interrupt(&allowed, &from, level(1), nearest);
    expected.map_or(-1, |core| i64::from(core.index())) == number(found)
}

/// `passed YES level L running R waited TENTHS`: whether the policy, too, leaves to its core what
/// waits there since that many tenths of a millisecond (`-`: no thread gave way to a wide one).
fn passed(words: &[&str]) -> bool {
    let [found, "level", of, "running", running, "waited", waited] = words else {
        panic!("not a queue that was looked at: {words:?}");
    };
    let class = if number(of) > 0 { Class::Wide(level(number(of))) } else { Class::Normal };
    let gave_way = *waited != "-";
    let tenths = if gave_way { u64::try_from(number(waited)).expect("a time") } else { 0 };
    let is_behind_wide = gave_way && number(running) > 0;
    may_take(class, Nanos::from_us(tenths * 100), is_behind_wide) != (number(found) == 1)
}

/// `went CPU own CPU idle YES other CPU`: whether the policy sends the thread there.
fn went(words: &[&str]) -> bool {
    let [found, "own", own, "idle", idle, "other", other] = words else {
        panic!("not a thread whose phase is over: {words:?}");
    };
    let other = Some(number(other)).filter(|cpu| *cpu >= 0);
    goes_on(number(own), *idle == "1", other) == number(found)
}

fn is_policys(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.split_first() {
        Some((&"taken", rest)) => taken(rest),
        Some((&"chosen", rest)) => chosen(rest),
        Some((&"passed", rest)) => passed(rest),
        Some((&"went", rest)) => went(rest),
        _ => panic!("no decision: {line}"),
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what was not there to be tested is said")]
fn the_kernels_scheduler_decides_as_the_policy_does() {
    let recorded = env::var_os("DIMMER_KERNEL_DECISIONS");
    let text = match &recorded {
        Some(path) => fs::read_to_string(path).expect("the recorded decisions"),
        None => RECORDED.to_owned(),
    };
    let lines: Vec<&str> = text.lines().collect();
    let other: Vec<&&str> = lines.iter().filter(|line| !is_policys(line)).collect();
    assert!(other.is_empty(), "the policy decides otherwise: {other:#?}");
    for kind in ["taken", "chosen", "passed 0", "passed 1", "went"] {
        let is_there = lines.iter().any(|line| line.starts_with(kind));
        // A run on a busy machine need not have had all of them.
        if !is_there && recorded.is_some() && !["taken", "chosen"].contains(&kind) {
            println!("SKIPPED: no decision that was recorded is: {kind}");
        } else {
            assert!(is_there, "no decision is: {kind}");
        }
    }
}

#[test]
fn decisions_against_the_policy_are_found() {
    // A narrow core takes a wide thread; a wide core takes one from the rank before its own.
    assert!(!is_policys("taken cpu 1 level 0 class 2 narrow 1 wide 1 rank 0"));
    assert!(!is_policys("taken cpu 0 level 1 class 1 narrow 1 wide 1 rank 0"));
    // The one without work is left out; one that runs wide code is interrupted; a narrow one is.
    assert!(!is_policys("chosen 0 from 2 cpus 1:0:0:1 1:0:-1:1 0:0:0:1"));
    assert!(!is_policys("chosen 0 from 1 cpus 1:0:1:1 0:0:0:1"));
    assert!(!is_policys("chosen 1 from 1 cpus 1:0:0:1 0:0:0:1"));
    // No core is interrupted although one could be; one is that the thread may not run on.
    assert!(!is_policys("chosen -1 from 1 cpus 1:0:0:1 0:0:0:1"));
    assert!(!is_policys("chosen 0 from 1 cpus 1:0:0:0 1:0:0:1"));
    // What gave way to a wide thread a moment ago is taken away; what waits long is not, nor a wide
    // thread.
    assert!(!is_policys("passed 0 level 0 running 1 waited 4"));
    assert!(!is_policys("passed 1 level 0 running 1 waited 5"));
    assert!(!is_policys("passed 1 level 0 running 0 waited 1"));
    assert!(!is_policys("passed 1 level 1 running 1 waited 1"));
    assert!(!is_policys("passed 1 level 0 running 1 waited -"));
    // A thread goes elsewhere than to its own core, which has no work, or waits elsewhere.
    assert!(!is_policys("went 2 own 1 idle 1 other 2"));
    assert!(!is_policys("went 0 own 1 idle 0 other -1"));
    assert!(!is_policys("went 1 own 1 idle 0 other 2"));
}
