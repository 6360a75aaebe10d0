//! Runs a program from its start to its end, and tells what it took and what it wrote.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_host::usage;

use crate::error::BenchError;

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// From its start to its end.
    pub lasted: Duration,
    /// Time on CPUs, of its children too; of what was put before it likewise.
    pub on_cpu: Duration,
    /// What it did, as far as others see it.
    pub outcome: Outcome,
}

/// How a run ended and what it wrote, so that two can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// A hash of its standard output.
    pub output: u64,
    /// The length of that (bytes).
    pub bytes: u64,
}

/// Runs `command` behind `prefix`, without input; its standard error goes nowhere.
///
/// # Errors
/// [`BenchError::System`] if it cannot be started, [`BenchError::Interrupted`] if the user has interrupted, when it has
/// ended.
pub fn run(
    prefix: &[OsString],
    command: &[OsString],
    interrupt: &Interrupt,
) -> Result<Run, BenchError> {
    let words: Vec<&OsString> = prefix.iter().chain(command).collect();
    let what =
        || words.first().map_or_else(String::new, |word| word.to_string_lossy().into_owned());
    let mut start = Command::new(words.first().map_or(OsString::new(), |word| (*word).clone()));
    start.args(words.iter().skip(1));
    start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let (begun, before) = (Instant::now(), usage::time_of_ended_children());
    let child = start.spawn().map_err(BenchError::system(format!("run {}", what())))?;
    let outcome = finish(child).map_err(BenchError::system(format!("follow {}", what())))?;
    let on_cpu = usage::time_of_ended_children().saturating_sub(before);
    if interrupt.is_set() {
        return Err(BenchError::Interrupted);
    }
    Ok(Run { lasted: begun.elapsed(), on_cpu, outcome })
}

fn finish(mut child: Child) -> std::io::Result<Outcome> {
    let (mut hasher, mut bytes) = (DefaultHasher::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    if let Some(mut output) = child.stdout.take() {
        loop {
            let read = match output.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hasher.write(&buffer[..read]);
            bytes += read as u64;
        }
    }
    Ok(Outcome { status: child.wait()?, output: hasher.finish(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Run {
        let words = ["sh", "-c", script].map(OsString::from);
        run(&words[..1], &words[1..], &Interrupt::install().unwrap()).unwrap()
    }

    #[test]
    fn runs_that_do_the_same_have_the_same_outcome() {
        let (one, other) = (shell("echo a; exit 3"), shell("printf a; echo; exit 3"));
        assert_eq!(one.outcome, other.outcome);
        assert_eq!((one.outcome.bytes, one.outcome.status.code()), (2, Some(3)));
        assert_ne!(one.outcome, shell("echo b; exit 3").outcome);
        assert_ne!(one.outcome, shell("echo a; exit 4").outcome);
        assert!(one.lasted > Duration::ZERO);
    }

    #[test]
    fn what_cannot_be_run_is_an_error() {
        let words = [OsString::from("/nowhere/at/all")];
        let refused = run(&[], &words, &Interrupt::install().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("/nowhere/at/all"), "{refused}");
    }
}
