//! A program with a marked region. It runs for a number of milliseconds, and spends some
//! microseconds in the region and some outside, in turn. Prints its calls, and where its region ran
//! while a server was there:
//!
//! ```text
//! cargo run --example client -- 2000
//! ```

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dimmer_runtime::Site;

static WORK: Site = Site::new("work", file!(), line!());

/// Computes for about `span`, and returns the result.
fn spin(span: Duration) -> u64 {
    let (begin, mut sum) = (Instant::now(), 1_u64);
    while begin.elapsed() < span {
        for _ in 0..100 {
            sum = sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
    }
    std::hint::black_box(sum)
}

/// The id of the calling kernel thread.
fn thread() -> i32 {
    // SAFETY: has no preconditions.
    unsafe { libc::gettid() }
}

fn main() {
    let ms = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    let (home, begin) = (thread(), Instant::now());
    let mut calls = 0_u64;
    // When the region started to run elsewhere, or here again (ms).
    let mut changes = BTreeMap::new();
    let mut was_migrated = false;
    while begin.elapsed() < Duration::from_millis(ms) {
        let is_migrated = {
            let _region = WORK.region();
            spin(Duration::from_micros(20));
            thread() != home
        };
        if is_migrated != was_migrated {
            changes.insert(begin.elapsed().as_millis(), is_migrated);
            was_migrated = is_migrated;
        }
        spin(Duration::from_micros(30));
        calls += 1;
        dimmer_runtime::metric(1);
    }
    let told: Vec<String> = changes
        .iter()
        .map(|(at, is_migrated)| {
            format!("{} at {at} ms", if *is_migrated { "away" } else { "home" })
        })
        .collect();
    println!("calls {calls}, counted {}, {}", WORK.statistics().calls, told.join(", "));
}
