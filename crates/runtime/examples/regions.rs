//! A program with two marked regions, one in the other. Says on which CPUs they ran, and what was counted:
//!
//! ```text
//! DIMMER_POLICY=borrow DIMMER_CORES=1 cargo run --example regions
//! ```

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::cell::Cell;

use dimmer_runtime::{Site, region, sites};

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

static TRANSFORM: Site = Site::new("transform", file!(), line!());

/// Where the calling kernel thread runs.
fn cpu() -> u32 {
    let mut cpu: u32 = 0;
    let nobody = std::ptr::null_mut::<u32>();
    // SAFETY: the kernel writes one number.
    unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, nobody, nobody) };
    cpu
}

fn transform(numbers: &mut [f64]) -> [u32; 2] {
    let _region = TRANSFORM.region();
    CALLS.set(CALLS.get() + 1);
    numbers.iter_mut().for_each(|number| *number = number.mul_add(0.5, 1.0));
    let inner = {
        let _region = region!("inner");
        cpu()
    };
    [cpu(), inner]
}

fn main() {
    let mut numbers = vec![1.0; 1000];
    let mut seen = Vec::new();
    for _ in 0..1000 {
        seen.push(transform(&mut numbers));
    }
    // SAFETY: the main thread's number is the process's.
    let is_home = unsafe { libc::gettid() } == unsafe { libc::getpid() };
    let closure = TRANSFORM.run(cpu);
    seen.sort_unstable();
    seen.dedup();
    println!("ran on {seen:?}, the closure on {closure}, the main thread is {}", where_is(is_home));
    println!("calls {}, sum {:.3}", CALLS.get(), numbers.iter().sum::<f64>());
    for site in sites() {
        let statistics = site.statistics();
        println!(
            "{}: about {} calls of {:?} ns",
            site.name(),
            statistics.calls,
            statistics.mean_ns
        );
    }
}

fn where_is(is_home: bool) -> &'static str {
    if is_home { "at home" } else { "away" }
}
