//! Tests on the real machine, whatever it is and whichever user runs them.

use std::process::Command;
use std::time::Instant;

use dimmer_host::capability::{State, Survey};
use dimmer_host::cpuid::{Cpuid, Feature};
use dimmer_host::machine::Machine;
use dimmer_host::perf::{Countable, Counters};
use dimmer_host::root::Root;
use dimmer_host::usage::{self, ThreadUsage};
use dimmer_host::{memory, realtime, steal, tile};
use dimmer_processor::class::InstructionClass;

/// Prints why a test cannot run here. Shown by `cargo test -- --nocapture`.
#[expect(clippy::print_stdout, reason = "the reason must reach those who run the tests")]
fn skipped(reason: &impl std::fmt::Display) {
    println!("SKIPPED: {reason}");
}

#[test]
fn surveys_this_machine() {
    let root = Root::live();
    let cpuid = Cpuid::of(&root).expect("the instruction");
    let survey = Survey::take(&root, &cpuid);
    assert!(!survey.machine.identity.vendor.is_empty());
    assert!(!survey.machine.allowed.is_empty());
    for capability in &survey.capabilities {
        let State::Unavailable(missing) = &capability.state else { continue };
        assert!(!missing.why.is_empty() && !missing.remedy.is_empty(), "{}", capability.id);
    }
}

#[test]
fn runs_the_classes_whose_features_it_has() {
    let root = Root::live();
    let mut machine = Machine::read(&root, &Cpuid::instruction());
    let mut check = |features: &[Feature], most: InstructionClass| {
        machine.features = features.to_vec();
        let runs = InstructionClass::ALL.into_iter().filter(|class| machine.runs(*class));
        assert_eq!(runs.max(), Some(most));
        assert_eq!(machine.has_more_than_256_bits(), most > InstructionClass::Heavy256);
    };
    check(&[], InstructionClass::Heavy128);
    check(&[Feature::Avx], InstructionClass::Heavy256);
    check(&[Feature::Avx, Feature::Avx512f], InstructionClass::Heavy512);
    check(&[Feature::Avx, Feature::Avx512f, Feature::AmxTile], InstructionClass::Tile);
}

#[test]
fn gives_every_capability_an_id_of_its_own() {
    let survey = Survey::take(&Root::live(), &Cpuid::instruction());
    let mut ids: Vec<&str> = survey.capabilities.iter().map(|capability| capability.id).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
}

#[test]
fn agrees_with_the_standard_library_about_features() {
    let cpuid = Cpuid::instruction();
    assert_eq!(cpuid.usable(Feature::Avx2), is_x86_feature_detected!("avx2"));
    assert_eq!(cpuid.usable(Feature::Fma), is_x86_feature_detected!("fma"));
    assert_eq!(cpuid.usable(Feature::Avx512f), is_x86_feature_detected!("avx512f"));
    assert_eq!(cpuid.usable(Feature::Avx512ifma), is_x86_feature_detected!("avx512ifma"));
    assert_eq!(cpuid.usable(Feature::Avx512vnni), is_x86_feature_detected!("avx512vnni"));
    assert_eq!(cpuid.usable(Feature::Avx512bf16), is_x86_feature_detected!("avx512bf16"));
    assert_eq!(cpuid.usable(Feature::Gfni), is_x86_feature_detected!("gfni"));
}

#[test]
fn counts_the_page_faults_of_this_thread() {
    let before = ThreadUsage::read();
    // Memory fresh from the kernel faults on first touch, whatever memory the allocator keeps.
    let mut fresh = vec![0_u8; 8 << 20];
    for page in fresh.chunks_mut(4096) {
        page[0] = 1;
    }
    let since = ThreadUsage::read().since(before);
    assert!(since.minor_faults + since.major_faults > 0, "{since:?}");
    assert_eq!(fresh[4096], 1);
}

#[test]
fn reads_stolen_time_of_each_hardware_thread() {
    match steal::stolen(&Root::live()) {
        Ok(stolen) => assert!(!stolen.is_empty()),
        Err(error) => skipped(&error),
    }
}

#[test]
fn counts_cycles_or_says_why_not() {
    let root = Root::live();
    match Counters::open(&root, &[Countable::Cycles, Countable::Instructions]) {
        Ok(mut counters) => {
            counters.start().expect("started");
            let sum: u64 = (0..100_000_u64).map(std::hint::black_box).sum();
            counters.stop().expect("stopped");
            assert!(sum > 0);
            let counted = counters.read().expect("read");
            assert_eq!(counted.values.len(), 2);
            assert!(counted.running <= counted.enabled);
            // If other programs hold the counters, these counters may never have run.
            if counted.running.ns() > 0 {
                assert!(counted.values[1] >= 100_000, "{counted:?}");
            }
        }
        Err(missing) => {
            assert!(missing.why.starts_with("perf_event_open: "), "{missing}");
            skipped(&missing);
        }
    }
}

#[test]
fn counts_and_times_begin_anew_with_each_start() {
    let mut counters = match Counters::open(&Root::live(), &[Countable::Cycles]) {
        Ok(counters) => counters,
        Err(missing) => return skipped(&missing),
    };
    let mut stretch = |sum: u64| {
        let begin = Instant::now();
        counters.start().expect("started");
        assert!((0..sum).map(std::hint::black_box).sum::<u64>() > 0);
        counters.stop().expect("stopped");
        let around = begin.elapsed().as_nanos();
        let counted = counters.read().expect("read");
        assert!(u128::from(counted.enabled.ns()) <= around, "{counted:?} within {around} ns");
        assert!(counted.running <= counted.enabled, "{counted:?}");
    };
    stretch(10_000_000);
    stretch(10);
}

#[test]
fn schedules_in_real_time_or_says_why_not() {
    // A separate thread, so that no other test runs with real-time priority.
    let tried = std::thread::spawn(|| realtime::real_time().map(drop)).join().expect("no panic");
    if let Err(missing) = tried {
        assert!(missing.why.starts_with("sched_setscheduler: "), "{missing}");
        skipped(&missing);
    }
}

#[test]
fn locks_pages_or_says_why_not() {
    if let Err(missing) = memory::lock_pages().map(drop) {
        assert!(missing.why.starts_with("mlockall: "), "{missing}");
        skipped(&missing);
    }
}

#[test]
fn permits_tiles_just_where_the_kernel_has_them() {
    // The kernel grants tiles if the processor has them and Linux is new enough.
    assert_eq!(tile::permit().is_ok(), tile::kernel_supports());
}

#[test]
fn what_ended_children_have_written_is_counted() {
    let live = Root::live();
    let Some(before) = usage::written(&live) else {
        skipped(&"this kernel does not count what is written (/proc/self/io)");
        return;
    };
    let mut child = Command::new("sh");
    let status = child.args(["-c", "head -c 300000 /dev/zero > /dev/null"]).status().unwrap();
    assert!(status.success());
    assert!(usage::written(&live).unwrap() >= before + 300_000);
    assert_eq!(usage::written(&Root::new("/nowhere")), None);
}
