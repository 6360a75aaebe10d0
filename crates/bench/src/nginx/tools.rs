//! The programs that the experiment needs, and how to install them with Debian's package manager.

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
    /// Looks for the programs; `None` if one is missing, see [`missing`].
    #[must_use]
    pub fn find() -> Option<Self> {
        Some(Self {
            nginx: find("nginx")?,
            wrk: find("wrk")?,
            openssl: find("openssl")?,
            setpriv: find("setpriv")?,
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

/// The packages of programs that are missing.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let absent = PROGRAMS.iter().filter(|(program, _)| find(program).is_none());
    absent.map(|(_, package)| *package).collect()
}

/// The one command that installs `packages`.
#[must_use]
pub fn install_command(packages: &[&str]) -> String {
    format!("apt-get install -y --no-install-recommends {}", packages.join(" "))
}

/// Installs `packages`, with new package lists if the present ones do not suffice. apt's output
/// goes to standard error.
///
/// # Errors
/// [`BenchError::System`] without apt, [`BenchError::Failed`] if it fails.
pub fn install(packages: &[&str]) -> Result<(), BenchError> {
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
}

fn apt(arguments: &[&str]) -> Result<(), BenchError> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    let status = status.map_err(BenchError::system("run apt-get"))?;
    if status.success() {
        return Ok(());
    }
    Err(BenchError::Failed { program: "apt-get".to_owned(), said: status.to_string() })
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
    fn command_names_all_packages() {
        let command = install_command(&["nginx", "wrk"]);
        assert_eq!(command, "apt-get install -y --no-install-recommends nginx wrk");
    }
}
