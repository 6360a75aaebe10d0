//! Two programs on one machine under a policy server, one with bursts of wide SIMD code, one
//! without: does the server's loop find out whether moving the bursts pays here?
//!
//! Both programs are further processes of this program (see [`run_program`]), so that the server
//! has two clients. Each way has its turn in every round. In each turn the second half counts: in
//! the first the loop may still be learning.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;
use dimmer_probe::kernel::Kernel;
use dimmer_probe::silicon::Callable;
use dimmer_probe::target::TargetError;
use dimmer_processor::units::CpuId;
use dimmer_runtime::{CORES, POLICY, Site};

use crate::daemon::Server;
use crate::error::BenchError;
use crate::pairs;
use crate::primesieve::Sieve;

/// Steps of the sieve between bursts: some 50 to 100 us.
const STEPS: u32 = 100_000;

/// Instructions in a burst, as in `bench primesieve`.
const BURST: u32 = 800;

/// How the bursts are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Where they are.
    Stay,
    /// Always on the dedicated core.
    Always,
    /// As a policy server decides that has the prices of calls and hand-overs on this machine, if a
    /// probe has measured them.
    Server,
    /// As a policy server decides that has no prices, and has to try.
    Trying,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Stay, Self::Always, Self::Server, Self::Trying];
}

/// Iterations per second of both programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of the program with bursts.
    pub wide: f64,
    /// Of the other program.
    pub scalar: f64,
    /// The part of bursts that ran on the dedicated core.
    pub moved: f64,
}

/// Runs one of the two programs for `span`. Returns the number of iterations in the second half,
/// the length of that half (ns), the number of all calls of the region, and the number of those
/// that ran elsewhere.
///
/// # Errors
/// If there is no memory for the burst's code.
pub fn run_program(burst: Option<&Arc<Kernel>>, span: Duration) -> Result<[u64; 4], TargetError> {
    static BURSTS: Site = Site::new("bursts", file!(), line!());
    static SCALAR: Site = Site::new("scalar", file!(), line!());
    let callable = burst.map(|kernel| Callable::new(kernel, BURST)).transpose()?;
    let home = rustix::thread::gettid();
    let mut sieve = Sieve::new();
    let (begin, half) = (Instant::now(), span / 2);
    let (mut calls, mut moved, mut middle, mut iterations) = (0, 0, None, 0);
    while begin.elapsed() < span {
        if middle.is_none() && begin.elapsed() >= half {
            (middle, iterations) = (Some(Instant::now()), 0);
        }
        {
            let _region = if callable.is_some() { BURSTS.region() } else { SCALAR.region() };
            match &callable {
                Some(burst) => burst.call(),
                None => sieve.work(STEPS / 16),
            }
            calls += 1;
            moved += u64::from(rustix::thread::gettid() != home);
        }
        sieve.work(STEPS);
        iterations += 1;
    }
    let since = middle.unwrap_or(begin).elapsed();
    Ok([iterations, u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), calls, moved])
}

/// Runs both programs in all ways, `rounds` times. `program` is the command that starts one of
/// them; `wide` or `scalar` is added to it, and `--seconds` with a number.
///
/// # Errors
/// If the server or a program does not start, or ends early, or if the user interrupts.
pub fn measure(
    (program, dimmerd): (&[OsString], &Path),
    dedicated: CpuId,
    (rounds, seconds): (usize, u32),
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Vec<[Rates; 4]>, BenchError> {
    let mut found = Vec::new();
    for round in 0..rounds {
        let mut rates = [Rates { wide: f64::NAN, scalar: f64::NAN, moved: f64::NAN }; 4];
        for way in pairs::order(round, Way::ALL.len()) {
            rates[way] = turn(program, dimmerd, Way::ALL[way], dedicated, seconds)?;
            if interrupt.is_set() {
                return Err(BenchError::Interrupted);
            }
            done();
        }
        found.push(rates);
    }
    Ok(found)
}

fn turn(
    program: &[OsString],
    dimmerd: &Path,
    way: Way,
    dedicated: CpuId,
    seconds: u32,
) -> Result<Rates, BenchError> {
    let mut server = match way {
        Way::Server | Way::Trying => Some(Server::start(dimmerd, "", way == Way::Server)?),
        Way::Stay | Way::Always => None,
    };
    let start = |kind: &str| {
        let (first, rest) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(first);
        command.args(rest).arg(kind).arg("--duration").arg(seconds.to_string());
        command.env_remove(POLICY).env_remove(CORES).env_remove(dimmer_protocol::SOCKET);
        match (&server, way) {
            (Some(server), _) => drop(command.env(dimmer_protocol::SOCKET, server.socket())),
            // The other program has no code that is worth moving.
            (None, Way::Always) if kind == "wide" => {
                command.env(POLICY, "migrate").env(CORES, dedicated.to_string());
            }
            _ => drop(command.env(POLICY, "stay")),
        }
        command.stdout(Stdio::piped()).spawn()
    };
    let failed = || BenchError::system("run the programs".to_owned());
    let wide = start("wide").map_err(failed())?;
    let scalar = match start("scalar") {
        Ok(scalar) => scalar,
        Err(error) => {
            let _ = finish(wide);
            return Err(failed()(error));
        }
    };
    let (wide, scalar) = (finish(wide), finish(scalar));
    server.as_mut().map_or(Ok(()), Server::check)?;
    let (wide, scalar) = (wide.map_err(failed())?, scalar.map_err(failed())?);
    let rate = |[iterations, ns, ..]: [u64; 4]| iterations as f64 * 1e9 / ns.max(1) as f64;
    let [.., calls, moved] = wide;
    Ok(Rates { wide: rate(wide), scalar: rate(scalar), moved: moved as f64 / calls.max(1) as f64 })
}

/// The numbers that a program printed at its end.
fn finish(child: Child) -> io::Result<[u64; 4]> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| io::Error::other(format!("it said: {text}")))
}
