//! Hostile surroundings, and what it costs to start programs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::child::{self, Done, Run};
use super::results::{Entry, Results, Verdict};
use super::workload::Surrounding;
use super::{Places, TURNS, keep, verdict};

/// Time limit of a line, in seconds.
const SECONDS: u64 = 180;

/// Runs one surrounding: a shell line, with and without Dimmer in it.
///
/// # Errors
/// If a run cannot be made, or its result cannot be recorded.
pub(super) fn torture(
    places: &Places,
    surrounding: &Surrounding,
    results: &mut Results,
) -> Result<()> {
    let name = &surrounding.name;
    if results.has_all(name) {
        return Ok(());
    }
    let line = |prefix: &str| {
        let line = surrounding
            .line
            .replace("{}", prefix)
            .replace('@', &places.inputs.display().to_string());
        ["sh".to_owned(), "-c".to_owned(), line].to_vec()
    };
    let run = |words: &[String], turn: &str| -> Result<Done> {
        let directory = places.own.join(format!("work/{name}-{turn}"));
        let done = Run { command: words, output: None, seconds: SECONDS }.make(&directory)?;
        let _ = fs::remove_dir_all(&directory);
        Ok(done)
    };
    let plain = run(&line(""), "plain")?;
    if plain.is_late || plain.end == CANNOT {
        results.add(Entry::skipped(name, "cannot be had here"))?;
        return results.complete(name);
    }
    // Without other variables, as the line may clear the environment.
    let dimmer = places.dimmer().display().to_string();
    let classes = format!("{dimmer} observe --classes {} --", super::CLASSES);
    for (way, prefix) in [("around", format!("{dimmer} observe --")), ("around-all", classes)] {
        for turn in 0..TURNS {
            let words = line(&prefix);
            let done = run(&words, way)?;
            let verdict = verdict(&plain, &done, false);
            if matches!(verdict, Verdict::Failed(_)) {
                keep(places, &format!("{name}-{way}-{turn}"), &words, &plain, &done)?;
            }
            let slower = done.seconds / plain.seconds.max(1e-3);
            results.add(Entry::new(name, way, turn, verdict, done.seconds, slower))?;
        }
    }
    results.complete(name)
}

/// Exit status of a line whose surrounding is not available.
const CANNOT: &str = "77";

/// Rounds of a comparison of starts.
const ROUNDS: usize = 5;

/// What it costs to start programs, as a table: with few libraries and with many, before anything
/// about them is cached (cold) and after (warm), and many short ones.
///
/// # Errors
/// If a program cannot be started.
pub(super) fn starts(places: &Places) -> Result<String> {
    let mut text =
        format!("\n{:<40}{:>10}{:>12}{:>12}\n", "start of", "plain ms", "cold + ms", "warm + ms");
    for program in [["curl", "--version"], ["ffmpeg", "-version"]] {
        let Some(path) = child::find(program[0]) else { continue };
        let libraries = libraries_of(&path);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let home = places.own.join("start-home");
            let _ = fs::remove_dir_all(&home);
            fs::create_dir_all(&home)?;
            let plain: Vec<String> = program.iter().map(|word| (*word).to_owned()).collect();
            let dimmer = places.dimmer().display().to_string();
            let home = format!("HOME={}", home.display());
            let observed = ["env", &home, &dimmer, "observe", "--"].map(str::to_owned);
            let observed: Vec<String> = observed.into_iter().chain(plain.iter().cloned()).collect();
            for (times, words) in times.iter_mut().zip([&plain, &observed, &observed]) {
                times.push(seconds_of(places, words)?);
            }
        }
        let [plain, cold, warm] = times.map(median);
        let what = format!("{} ({libraries} libraries)", program.join(" "));
        let (plain, cold, warm) = (plain * 1e3, (cold - plain) * 1e3, (warm - plain) * 1e3);
        let _ = writeln!(text, "{what:<40}{plain:>10.1}{cold:>12.1}{warm:>12.1}");
    }
    let many = "i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done";
    let plain = ["sh", "-c", many].map(str::to_owned).to_vec();
    let observed: Vec<String> =
        places.command(&["observe", "--"]).into_iter().chain(plain.clone()).collect();
    let (plain, observed) = (seconds_of(places, &plain)?, seconds_of(places, &observed)?);
    let _ = writeln!(
        text,
        "3000 short processes: {plain:.2} s plain, {observed:.2} s observed, {:.2} times as long",
        observed / plain
    );
    Ok(text)
}

fn seconds_of(places: &Places, words: &[String]) -> Result<f64> {
    let begun = Instant::now();
    let directory = places.own.join("work/start");
    Run { command: words, output: None, seconds: SECONDS }.make(&directory)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn libraries_of(program: &Path) -> usize {
    let listed = std::process::Command::new("ldd").arg(program).output();
    listed.map_or(0, |listed| String::from_utf8_lossy(&listed.stdout).lines().count())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
