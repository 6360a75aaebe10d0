//! The programs that the experiment needs, and the command that installs them in Debian.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use dimmer_host::program;

use crate::BenchError;

/// Programs, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 4] =
    [("nginx", "nginx"), ("wrk", "wrk"), ("openssl", "openssl"), ("setpriv", "util-linux")];

/// Directories of servers; only root has them in `PATH`.
const SERVERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The path of each program.
#[derive(Clone, Debug)]
pub struct Tools {
    pub(super) nginx: PathBuf,
    pub(super) wrk: PathBuf,
    pub(super) openssl: PathBuf,
    pub(super) setpriv: PathBuf,
}

impl Tools {
    /// Looks for the programs.
    ///
    /// # Errors
    /// [`BenchError::Missing`] names all that are missing. Nothing is installed.
    pub fn find() -> Result<Self, BenchError> {
        Self::by(find)
    }

    fn by(find: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, BenchError> {
        let found = PROGRAMS.map(|(program, _)| find(program));
        if let [Some(nginx), Some(wrk), Some(openssl), Some(setpriv)] = found {
            return Ok(Self { nginx, wrk, openssl, setpriv });
        }
        let absent = PROGRAMS.iter().zip(&found).filter(|(_, found)| found.is_none());
        let names = |of: fn(&(&'static str, &'static str)) -> &'static str| {
            absent.clone().map(|(program, _)| of(program)).collect::<Vec<_>>()
        };
        Err(BenchError::Missing {
            programs: names(|(program, _)| program).join(", "),
            install: format!(
                "apt-get install -y --no-install-recommends {}",
                names(|(_, package)| package).join(" ")
            ),
        })
    }

    /// The versions that server, library and load report: `nginx/1.22.1`,
    /// `OpenSSL 3.0.22 25 Aug 2026`.
    #[must_use]
    pub fn versions(&self) -> Vec<String> {
        let line = |program: &PathBuf, argument: &str| {
            let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
            let said = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&said).lines().next().map(version)
        };
        let all = [(&self.nginx, "-v"), (&self.openssl, "version"), (&self.wrk, "-v")];
        all.into_iter().filter_map(|(program, argument)| line(program, argument)).collect()
    }
}

/// The version in a program's line about itself.
fn version(line: &str) -> String {
    let line = line.split(['(', '[']).next().unwrap_or_default().trim();
    line.strip_prefix("nginx version: ").unwrap_or(line).to_owned()
}

fn find(name: &str) -> Option<PathBuf> {
    let found = program::find(OsStr::new(name), std::env::var_os("PATH").as_deref());
    found.or_else(|_| program::find(OsStr::new(name), Some(OsStr::new(SERVERS)))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_short() {
        assert_eq!(version("nginx version: nginx/1.22.1"), "nginx/1.22.1");
        let long = "OpenSSL 3.0.22 25 Aug 2026 (Library: OpenSSL 3.0.22 25 Aug 2026)";
        assert_eq!(version(long), "OpenSSL 3.0.22 25 Aug 2026");
        let long = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer";
        assert_eq!(version(long), "wrk debian/4.1.0-3+b2");
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_installs_it() {
        let there = |name: &str| Some(PathBuf::from(format!("/usr/bin/{name}")));
        assert!(Tools::by(there).is_ok());
        let missing = |name: &str| there(name).filter(|_| name == "openssl");
        assert_eq!(
            Tools::by(missing).unwrap_err().to_string(),
            "missing: nginx, wrk, setpriv; in Debian or Ubuntu, as root: apt-get install -y \
             --no-install-recommends nginx wrk util-linux"
        );
    }
}
