//! A program with two marked regions, one inside the other. Prints where they ran, and the counts:
//!
//! ```text
//! DIMMER_POLICY=migrate DIMMER_CORES=1 cargo run --example regions
//! ```

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::cell::Cell;

use dimmer_runtime::{Site, region, sites};

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

static TRANSFORM: Site = Site::new("transform", file!(), line!());

/// Where code of the main thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// On its own kernel thread, wherever the scheduler runs that.
    Home,
    /// On another kernel thread, which runs on this CPU.
    Cpu(u32),
}

fn place() -> Place {
    // SAFETY: have no preconditions. The main thread's id is the process's.
    if unsafe { libc::gettid() } == unsafe { libc::getpid() } {
        return Place::Home;
    }
    let mut cpu: u32 = 0;
    let unused = std::ptr::null_mut::<u32>();
    // SAFETY: the kernel writes one number.
    unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, unused, unused) };
    Place::Cpu(cpu)
}

fn transform(numbers: &mut [f64]) -> [Place; 2] {
    let _region = TRANSFORM.region();
    CALLS.set(CALLS.get() + 1);
    numbers.iter_mut().for_each(|number| *number = number.mul_add(0.5, 1.0));
    let inner = {
        let _region = region!("inner");
        place()
    };
    [place(), inner]
}

fn main() {
    let mut numbers = vec![1.0; 1000];
    let mut seen = Vec::new();
    for _ in 0..1000 {
        seen.push(transform(&mut numbers));
    }
    let main = place();
    let closure = TRANSFORM.run(place);
    seen.sort_unstable();
    seen.dedup();
    println!("ran at {seen:?}, the closure at {closure:?}, the main thread at {main:?}");
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
