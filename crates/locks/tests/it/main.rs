//! Locks keep threads apart, wake them, and execute the acts of their strategies.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

mod acts;
mod exclusion;
mod executed;
mod on_machine;
mod with_back_end;

/// Threads of a test: more than this machine may have CPUs.
const THREADS: u32 = 4;
/// Sections of each thread.
const SECTIONS: u32 = 2000;

/// Runs the function in this number of threads at a time, each with its number. They are joined one
/// by one: the end of a scope alone is not seen by ThreadSanitizer.
#[track_caller]
fn in_threads(threads: u32, run: impl Fn(u32) + Sync) {
    std::thread::scope(|scope| {
        let run = &run;
        let start = |number| scope.spawn(move || run(number));
        for thread in (0..threads).map(start).collect::<Vec<_>>() {
            thread.join().unwrap();
        }
    });
}
