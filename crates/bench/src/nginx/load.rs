//! The load: runs `wrk`, and parses what it prints.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dimmer_host::interrupt::Interrupt;

use super::server::LOOK;
use super::tools::Tools;
use crate::BenchError;

/// Connections that the load keeps busy: enough that the worker never waits for it.
pub const CONNECTIONS: u32 = 16;

/// How much longer than requested the tool may take before it is ended.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the comparing script prints before its numbers.
pub(super) const CHECKED: &str = "Checked:";
pub(super) const WRONG: &str = "Wrong:";

/// The results of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that were answered per second.
    pub requests_per_s: f64,
    /// Bytes of an answer with its header, after decryption, to three digits.
    pub bytes_per_request: f64,
    /// Connections refused, broken off or too slow.
    pub socket_errors: u64,
    /// Answers with a status other than success or redirection.
    pub bad_responses: u64,
    /// Answers that were compared with the document, after the measured ones.
    pub checked: u64,
    /// Of these, answers that differ from it.
    pub wrong: u64,
}

impl Load {
    /// Parses what `wrk`, version 4, prints; `None` if it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let after = |name: &str| {
            text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
        };
        let total = text.lines().find_map(|line| line.trim().split_once(" requests in "));
        let (requests, rest) = total?;
        let requests: u64 = requests.parse().ok()?;
        let bytes = bytes(rest.split_once(", ")?.1.strip_suffix(" read")?)?;
        let errors = after("Socket errors:").unwrap_or_default().split(", ");
        let errors = errors.filter_map(|error| error.rsplit(' ').next()?.parse::<u64>().ok());
        let number = |name| after(name).and_then(|number| number.parse().ok()).unwrap_or_default();
        Some(Self {
            requests,
            requests_per_s: after("Requests/sec:")?.parse().ok()?,
            bytes_per_request: if requests == 0 { 0.0 } else { bytes / requests as f64 },
            socket_errors: errors.sum(),
            bad_responses: match after("Non-2xx or 3xx responses:") {
                Some(number) => number.parse().ok()?,
                None => 0,
            },
            checked: number(CHECKED),
            wrong: number(WRONG),
        })
    }

    /// The sum of everything that must be zero.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.socket_errors.saturating_add(self.bad_responses).saturating_add(self.wrong)
    }
}

/// Parses a size such as `1.23KB`, in steps of 1024 (wrk, `src/units.c`).
fn bytes(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[number.len()..] {
        "B" => 0,
        "KB" => 1,
        "MB" => 2,
        "GB" => 3,
        "TB" => 4,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * 1024_f64.powi(factor))
}

/// Loads `url` for `seconds`. If there is a script, it compares the answers.
pub(super) fn run(
    tools: &Tools,
    url: &str,
    seconds: u32,
    check: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<Load, BenchError> {
    let mut command = Command::new(&tools.setpriv);
    command.args(["--pdeathsig", "TERM", "--"]).arg(&tools.wrk);
    command.arg("-t1").arg(format!("-c{CONNECTIONS}")).arg(format!("-d{seconds}s"));
    match check {
        Some(script) => command.arg("-s").arg(script).arg(url),
        None => command.args(["-H", "Accept-Encoding: gzip"]).arg(url),
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(BenchError::system("run wrk"))?;
    let deadline = Instant::now() + Duration::from_secs(u64::from(seconds)) + PATIENCE;
    let mut child = Ended(child);
    // wrk prints less than a pipe holds, so its output need not be read before its end.
    loop {
        let status = child.0.try_wait().map_err(BenchError::system("wait for wrk"))?;
        if interrupt.is_set() {
            return Err(BenchError::Interrupted);
        }
        match status {
            Some(_) => break,
            None if Instant::now() > deadline => {
                return Err(BenchError::Load { said: "it does not end".to_owned() });
            }
            None => std::thread::sleep(LOOK),
        }
    }
    let said = child.said();
    Load::parse(&said).ok_or(BenchError::Load { said })
}

/// A process that ends when this is dropped.
struct Ended(Child);

impl Ended {
    /// Waits for its end, and returns all that it has printed.
    fn said(&mut self) -> String {
        let mut said = Vec::new();
        for stream in [
            self.0.stdout.take().map(|stream| Box::new(stream) as Box<dyn std::io::Read>),
            self.0.stderr.take().map(|stream| Box::new(stream) as Box<dyn std::io::Read>),
        ]
        .into_iter()
        .flatten()
        {
            let mut stream = stream;
            // Output that could not be read is missing below, and is reported there.
            let _ = stream.read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).trim().to_owned()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
Running 4s test @ https://127.0.0.1:18443/index.html
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     7.44ms    6.99ms  62.27ms   92.54%
    Req/Sec     2.50k   737.09     4.39k    75.00%
  9999 requests in 4.05s, 82.76MB read
Requests/sec:   2468.85
Transfer/sec:     20.43MB
";

    #[test]
    fn reads_what_wrk_says() {
        let load = Load::parse(GOOD).unwrap();
        assert_eq!((load.requests, load.requests_per_s), (9999, 2468.85));
        assert!((load.bytes_per_request - 8679.0).abs() < 1.0, "{load:?}");
        assert_eq!(load.errors(), 0);
    }

    #[test]
    fn errors_of_all_kinds_are_added() {
        let bad = GOOD.replace(
            "Requests/sec",
            "  Socket errors: connect 1, read 20, write 300, timeout 4000\n  \
             Non-2xx or 3xx responses: 50000\nRequests/sec",
        );
        let load = Load::parse(&bad).unwrap();
        assert_eq!((load.socket_errors, load.bad_responses), (4321, 50_000));
        assert_eq!(load.errors(), 54_321);
    }

    #[test]
    fn nothing_answered_is_no_division_by_zero() {
        let none = GOOD.replace("9999 requests in 4.05s, 82.76MB", "0 requests in 4.00s, 0.00B");
        let load = Load::parse(&none).unwrap();
        assert_eq!((load.requests, load.bytes_per_request), (0, 0.0));
    }

    #[test]
    fn other_words_are_refused() {
        for text in ["", "unable to connect to 127.0.0.1:1 Connection refused"] {
            assert_eq!(Load::parse(text), None);
        }
        assert_eq!(Load::parse(&GOOD.replace("MB read", "XB read")), None);
        assert_eq!(Load::parse(&GOOD.replace("Requests/sec:", "Requests:")), None);
    }
}
