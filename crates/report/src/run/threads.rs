//! What `dimmer run --specialise` tells of threads. `docs/specialise-run.md` describes the
//! document.

use std::fmt::Write as _;
use std::time::Duration;

use dimmer_host::root::format_cpu_list;
use dimmer_launch::account::{Specialised, SpecialisedThread, WideTimes};
use dimmer_policy::specialise::Stays;
use serde::Serialize;

use crate::number::{SPACE, counted, time};
use crate::screen::Screen;

/// Maximum number of threads and functions shown: those with the most calls.
const MOST_TOLD: usize = 10;

/// The document `dimmer/specialise/1`.
pub fn document(specialised: &Specialised) -> impl Serialize {
    Document::new(specialised)
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    cpus: Vec<u32>,
    cpus_from: CpusFrom,
    round_trip_ns: Option<f64>,
    to_wide: u64,
    back: u64,
    wide_ns: u64,
    threads: Vec<ThreadEntry>,
    threads_summed: usize,
    functions: Vec<FunctionEntry<'a>>,
    problems: &'a [String],
}

/// Whose CPUs were wide, and for how long.
#[derive(Debug, Serialize)]
struct CpusFrom {
    is_named: bool,
    server_s: f64,
    none_s: f64,
    own_s: f64,
}

/// A thread that called one of the functions.
#[derive(Debug, Serialize)]
struct ThreadEntry {
    process: u32,
    thread: u32,
    calls: u64,
    to_wide: u64,
    back: u64,
    wide_ns: u64,
    stays: Vec<&'static str>,
}

/// A function at which threads become wide.
#[derive(Debug, Serialize)]
struct FunctionEntry<'a> {
    name: &'a str,
    calls: u64,
}

impl<'a> Document<'a> {
    fn new(specialised: &'a Specialised) -> Self {
        let sum = |of: fn(&SpecialisedThread) -> u64| sum(specialised, of);
        Self {
            schema: "dimmer/specialise/1",
            cpus: specialised.cpus.iter().map(|cpu| cpu.index()).collect(),
            cpus_from: CpusFrom {
                is_named: specialised.times.is_named,
                server_s: specialised.times.server.as_secs_f64(),
                none_s: specialised.times.none.as_secs_f64(),
                own_s: specialised.times.own.as_secs_f64(),
            },
            round_trip_ns: specialised.round_trip_ns,
            to_wide: sum(|thread| thread.to_wide),
            back: sum(|thread| thread.back),
            wide_ns: sum(|thread| thread.wide.ns()),
            threads: specialised.threads.iter().map(ThreadEntry::new).collect(),
            threads_summed: specialised.threads_summed,
            functions: specialised
                .functions
                .iter()
                .map(|(name, calls)| FunctionEntry { name, calls: *calls })
                .collect(),
            problems: &specialised.problems,
        }
    }
}

impl ThreadEntry {
    fn new(thread: &SpecialisedThread) -> Self {
        Self {
            process: thread.process,
            thread: thread.thread,
            calls: thread.calls,
            to_wide: thread.to_wide,
            back: thread.back,
            wide_ns: thread.wide.ns(),
            stays: thread.stays.iter().map(|why| name(*why)).collect(),
        }
    }
}

fn sum(specialised: &Specialised, of: fn(&SpecialisedThread) -> u64) -> u64 {
    specialised.threads.iter().map(of).fold(0, u64::saturating_add)
}

/// The reason's name in the document.
const fn name(why: Stays) -> &'static str {
    match why {
        Stays::Pinned => "pinned",
        Stays::Refused => "refused",
        Stays::TooMany => "too many",
    }
}

const fn words(why: Stays) -> &'static str {
    match why {
        Stays::Pinned => "stayed at times, as the program has pinned it to other CPUs",
        Stays::Refused => "stayed at times, as the kernel did not change its affinity",
        Stays::TooMany => "stayed at times, as too many threads were wide at once",
    }
}

/// The summary as text.
pub fn text(specialised: &Specialised, screen: Screen) -> String {
    screen.shown(&told(specialised))
}

fn told(specialised: &Specialised) -> String {
    let sum = |of: fn(&SpecialisedThread) -> u64| sum(specialised, of);
    let wide = specialised.threads.iter().filter(|thread| thread.to_wide > 0).count();
    let all = specialised.threads.len() + specialised.threads_summed.saturating_sub(1);
    let mut text = format!(
        "Specialise: {wide} of {} went to {}, {} times, and came back {} times; they were there for {} in all.\n",
        counted(all, "thread"),
        match specialised.cpus.as_slice() {
            [] => "wide CPUs".to_owned(),
            cpus => format!("cpu {}", format_cpu_list(cpus)),
        },
        sum(|thread| thread.to_wide),
        sum(|thread| thread.back),
        time(sum(|thread| thread.wide.ns()) as f64),
    );
    text += &from(&specialised.times);
    let mut threads: Vec<&SpecialisedThread> = specialised.threads.iter().collect();
    threads.sort_by_key(|thread| std::cmp::Reverse(thread.calls));
    for thread in threads.iter().take(MOST_TOLD) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    thread {:<33} {:>10} calls {:>6} there {:>6} back {:>9} wide",
            thread.thread,
            thread.calls,
            thread.to_wide,
            thread.back,
            time(thread.wide.as_f64()),
        );
        for why in &thread.stays {
            let _ = writeln!(text, "        {}", words(*why));
        }
    }
    more(&mut text, threads.get(MOST_TOLD..).unwrap_or_default().len());
    let mut functions: Vec<&(String, u64)> = specialised.functions.iter().collect();
    functions.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
    for (name, calls) in functions.iter().take(MOST_TOLD) {
        let _ = writeln!(text, "    {name:<40} {calls:>10} calls");
    }
    more(&mut text, functions.get(MOST_TOLD..).unwrap_or_default().len());
    for problem in &specialised.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text
}

/// Whose CPUs were wide, in a line; nothing if the user has named them.
fn from(times: &WideTimes) -> String {
    let lasted = |span: Duration| format!("{:.1}{SPACE}s", span.as_secs_f64());
    let WideTimes { is_named, server, none, own } = *times;
    if is_named || (server, none, own) == Default::default() {
        return String::new();
    }
    if server.is_zero() && none.is_zero() {
        return "  The CPUs were the run's own choice: no policy server gave any.\n".to_owned();
    }
    let none =
        if none.is_zero() { String::new() } else { format!(", and none for {}", lasted(none)) };
    let own = if own.is_zero() {
        String::new()
    } else {
        format!(
            "; for {} it was not there or had none for this program, and the CPUs were the run's own choice",
            lasted(own)
        )
    };
    format!("  The policy server gave the CPUs for {}{none}{own}.\n", lasted(server))
}

pub(super) fn more(text: &mut String, others: usize) {
    if others > 0 {
        let _ = writeln!(text, "    {}", counted(others, "other"));
    }
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::{CpuId, Nanos};

    use super::*;

    fn two() -> Specialised {
        let thread = |thread, calls, to_wide, stays: &[Stays]| SpecialisedThread {
            process: 7,
            thread,
            calls,
            to_wide,
            back: to_wide,
            wide: Nanos::from_us(1500 * to_wide),
            stays: stays.to_vec(),
        };
        Specialised {
            cpus: vec![CpuId::new(6), CpuId::new(7)],
            round_trip_ns: Some(21_000.0),
            threads: vec![thread(70, 5, 0, &[Stays::Pinned]), thread(71, 900, 2, &[])],
            functions: vec![("wide".to_owned(), 905)],
            ..Specialised::default()
        }
    }

    #[test]
    fn threads_are_told_with_their_moves_and_why_they_stayed() {
        let text = told(&two()).replace('\u{a0}', " ");
        let first = "Specialise: 1 of 2 threads went to cpu 6-7, 2 times, and came back 2 times; \
                     they were there for 3.00 ms in all.\n";
        assert!(text.starts_with(first), "{text}");
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(place("thread 71") < place("thread 70"), "the most calls first: {text}");
        assert!(place("thread 70") < place("has pinned it") && text.contains("wide  "), "{text}");
        let json = serde_json::to_value(document(&two())).unwrap();
        assert_eq!(json["schema"], "dimmer/specialise/1");
        assert_eq!((&json["to_wide"], &json["wide_ns"]), (&2.into(), &3_000_000.into()));
        assert_eq!(json["threads"][0]["stays"][0], "pinned");
    }

    #[test]
    fn whose_cpus_were_wide_is_told_unless_the_user_has_named_them() {
        let [server, none, own] = [2000, 160, 300].map(Duration::from_millis);
        let all = WideTimes { is_named: false, server, none, own };
        let line = |times| from(&times).replace('\u{a0}', " ");
        assert_eq!(
            line(all),
            "  The policy server gave the CPUs for 2.0 s, and none for 0.2 s; for 0.3 s it was not \
             there or had none for this program, and the CPUs were the run's own choice.\n"
        );
        let only = WideTimes { server, ..WideTimes::default() };
        assert_eq!(line(only), "  The policy server gave the CPUs for 2.0 s.\n");
        let only = WideTimes { own, ..WideTimes::default() };
        assert!(line(only).contains("no policy server gave any"));
        assert_eq!(line(WideTimes { is_named: true, ..only }), "");
        let json = serde_json::to_value(document(&Specialised { times: all, ..two() })).unwrap();
        assert_eq!(
            (&json["cpus_from"]["server_s"], &json["cpus_from"]["own_s"]),
            (&2.0.into(), &0.3.into())
        );
    }

    #[test]
    fn a_long_list_is_cut() {
        let mut many = two();
        many.threads = vec![SpecialisedThread::default(); 15];
        let text = told(&many).replace('\u{a0}', " ");
        assert!(text.contains("    5 others\n"), "{text}");
        assert!(told(&Specialised::default()).contains("0 threads"));
    }
}
