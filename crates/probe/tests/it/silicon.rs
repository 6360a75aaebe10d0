//! The real processor: checks properties that hold at any speed and under any load.

use std::sync::Arc;

use dimmer_probe::kernel;
use dimmer_probe::program::{Program, Work};
use dimmer_probe::silicon::{Silicon, SiliconConfig};
use dimmer_probe::target::{Job, Target};
use dimmer_processor::topology::Topology;
use dimmer_processor::units::CpuId;

/// The machine, with the first CPU that this process may use.
fn silicon(features: &[&str]) -> (Silicon, CpuId) {
    let cpu = dimmer_host::affinity::allowed().unwrap()[0];
    let silicon = Silicon::new(SiliconConfig {
        cpus: vec![cpu],
        topology: Topology::default(),
        features: features.iter().map(ToString::to_string).collect(),
        huge_pages: false,
        events: Vec::new(),
    });
    (silicon.unwrap(), cpu)
}

#[test]
fn a_program_gives_one_stamp_more_than_it_has_windows() {
    let (mut silicon, cpu) = silicon(&[]);
    let mut program = Program::default();
    program.push(&[Work::clock(160), Work::issue(640)], 500);
    program.push(&[Work::clock(16)], 3);
    let trace = silicon.run(&[Job { cpu, program: &program }]).unwrap().remove(0);
    assert_eq!(program.windows(), 1003);
    assert_eq!(trace.stamps.len(), 1004);
    assert!(trace.stamps.windows(2).all(|pair| pair[0].ticks() <= pair[1].ticks()));
    assert!(trace.stamps[0].ticks() > 0);
}

#[test]
fn no_page_fault_falls_into_the_timed_stretch() {
    let (mut silicon, cpu) = silicon(&[]);
    let mut program = Program::default();
    program.push(&[Work::clock(160), Work::issue(640)], 50_000);
    // The first run may map the worker's own stack; buffers are new in every run.
    let faults: Vec<u64> = (0..5)
        .map(|_| silicon.run(&[Job { cpu, program: &program }]).unwrap()[0].page_faults)
        .collect();
    assert_eq!(faults[1..], [0, 0, 0, 0], "{faults:?}");
}

#[test]
fn longer_work_takes_longer() {
    // Not a measurement: a factor of a hundred shows in the minimum despite any disturbance.
    let (mut silicon, cpu) = silicon(&[]);
    let mut program = Program::default();
    program.push(&[Work::clock(160), Work::clock(16_000)], 50);
    let trace = silicon.run(&[Job { cpu, program: &program }]).unwrap().remove(0);
    let least = |parity: usize| (parity..100).step_by(2).map(|w| trace.ticks(w)).min().unwrap();
    assert!(least(1) > 10 * least(0), "{} {}", least(0), least(1));
}

#[test]
fn every_kernel_that_the_processor_has_runs() {
    let mut features = Vec::new();
    macro_rules! detect {
        ($($feature:tt => $name:literal),*) => {
            $(if is_x86_feature_detected!($feature) { features.push($name); })*
        };
    }
    detect!("avx2" => "avx2", "fma" => "fma", "avx512f" => "avx512f", "avx512dq" => "avx512dq",
        "avx512bw" => "avx512bw", "avx512vl" => "avx512vl", "avx512ifma" => "avx512ifma");
    let (mut silicon, cpu) = silicon(&features);
    let mut ran = 0;
    for kernel in kernel::all() {
        if let Some(reason) = silicon.lacks(kernel) {
            println!("SKIPPED: {kernel}: {reason}");
            continue;
        }
        let kernel = Arc::new(kernel.clone());
        let mut program = Program::default();
        program
            .push(&[Work::TouchUpper { clean: true }], usize::from(features.contains(&"avx512f")));
        for count in [1, 31, 1024, 1025, 5000] {
            program.push(&[Work::burst(&kernel, count)], 2);
        }
        let trace = silicon.run(&[Job { cpu, program: &program }]).unwrap().remove(0);
        assert_eq!(trace.stamps.len(), program.windows() + 1);
        ran += 1;
    }
    assert!(ran > 0, "scalar kernels run everywhere");
}

#[test]
fn a_mixture_runs() {
    let (mut silicon, cpu) = silicon(&["avx2", "fma"]);
    if !is_x86_feature_detected!("fma") {
        println!("SKIPPED: the processor has no fused multiply-add");
        return;
    }
    let kernel = kernel::find("vfmadd231pd-256-unrolled:1+add-scalar-unrolled:7").unwrap();
    assert_eq!(silicon.lacks(&kernel), None);
    let mut program = Program::default();
    program.push(&[Work::burst(&Arc::new(kernel), 4000)], 3);
    assert_eq!(silicon.run(&[Job { cpu, program: &program }]).unwrap()[0].stamps.len(), 4);
}

#[test]
fn kernels_that_lack_something_say_what() {
    let (silicon, _) = silicon(&["avx2"]);
    let kernel = kernel::find("tdpbf16ps-tile-unrolled").unwrap();
    let reason = silicon.lacks(&kernel).unwrap();
    assert!(reason.contains("amx_tile, amx_bf16"), "{reason}");
}
