//! Where the policy server serves its metrics: an address of the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The address at which metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(text),
            Self::Unix(path) => write!(text, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Parses an address of a configuration: `127.0.0.1:9466`, or `unix:/run/dimmerd/metrics`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Some(Self::Unix(path.into())),
            Some(_) => None,
            None => text.parse().ok().map(Self::Tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:9466", "[::1]:9466", "unix:/run/dimmerd/metrics"] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()).unwrap(), text);
        }
        for text in ["here", "127.0.0.1", "unix:metrics"] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}
