//! Names of hosts and paths of users, which no record may have.
//!
//! Texts of documents are searched word by word. A path is one of a user's unless it starts at one
//! of the system's directories; a word is a host's name if it has this machine's in it, or has the
//! form of a full name or an address.

use std::net::IpAddr;

use serde_json::Value;

/// The system's directories, whose paths are the same on all machines.
const SYSTEM: [&str; 12] = [
    "/bin/",
    "/boot/",
    "/dev/",
    "/etc/",
    "/lib/",
    "/lib64/",
    "/proc/",
    "/run/",
    "/sbin/",
    "/sys/",
    "/usr/",
    "/var/lib/",
];

/// What stands in place of what is removed.
const REMOVED: &str = "...";

/// Ends of full names of hosts. Versions have points, too, and file names have other ends.
const DOMAINS: [&str; 14] = [
    "com",
    "net",
    "org",
    "edu",
    "gov",
    "io",
    "dev",
    "cloud",
    "local",
    "localdomain",
    "lan",
    "internal",
    "intranet",
    "home",
];

/// Something that a record may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// What it is: `a path of a user`.
    pub what: &'static str,
    /// The word.
    pub word: String,
}

/// What there is to look for.
#[derive(Clone, Debug, Default)]
pub struct Privacy {
    /// The full name of this machine and its first label, unless they say nothing.
    hosts: Vec<String>,
}

impl Privacy {
    /// Looks also for this name of a host.
    #[must_use]
    pub fn new(host: &str) -> Self {
        // Names that many machines have, and such that are words.
        let says_something =
            |name: &str| name.len() >= 4 && !["localhost", "(none)", "linux"].contains(&name);
        let host = host.to_ascii_lowercase();
        let label = host.split('.').next().unwrap_or(&host).to_owned();
        Self { hosts: [host, label].into_iter().filter(|name| says_something(name)).collect() }
    }

    /// What the texts of a document have that they may not have. Keys are not searched: their names
    /// are Dimmer's own.
    #[must_use]
    pub fn leaks(&self, document: &Value) -> Vec<Leak> {
        let mut found = Vec::new();
        each_text(document, &mut |text| {
            found.extend(words(text).filter_map(|word| self.leak(word)));
        });
        found.sort_by(|a, b| a.word.cmp(&b.word));
        found.dedup();
        found
    }

    /// Replaces what a document may not have: of paths, the directories.
    pub fn clean(&self, document: &mut Value) {
        match document {
            Value::String(text) => *text = self.cleaned(text),
            Value::Array(entries) => entries.iter_mut().for_each(|entry| self.clean(entry)),
            Value::Object(keys) => keys.values_mut().for_each(|value| self.clean(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The text without what it may not have.
    #[must_use]
    pub fn cleaned(&self, text: &str) -> String {
        let mut cleaned = text.to_owned();
        for Leak { what, word } in words(text).filter_map(|word| self.leak(word)) {
            let file = if what == PATH { word.rsplit('/').next() } else { None };
            let instead = file.map(|file| format!("{REMOVED}/{file}"));
            cleaned = cleaned.replace(&word, instead.as_deref().unwrap_or(REMOVED));
        }
        cleaned
    }

    fn leak(&self, word: &str) -> Option<Leak> {
        let lower = word.to_ascii_lowercase();
        let is_host = || self.hosts.iter().any(|host| has_apart(&lower, host));
        let what = if is_users_path(word) {
            PATH
        } else if is_host() {
            "the name of this host"
        } else if is_full_name(&lower) {
            "the name of a host"
        } else if is_address(word) {
            "the address of a host"
        } else {
            return None;
        };
        Some(Leak { what, word: word.to_owned() })
    }
}

const PATH: &str = "a path of a user";

fn each_text<'a>(value: &'a Value, look: &mut impl FnMut(&'a str)) {
    match value {
        Value::String(text) => look(text),
        Value::Array(entries) => entries.iter().for_each(|entry| each_text(entry, look)),
        Value::Object(keys) => keys.values().for_each(|value| each_text(value, look)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What stands between blanks, quotation marks and the like.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c.is_whitespace() || "\"'`=,;()[]<>|".contains(c));
    words.map(without_end).filter(|word| !word.is_empty())
}

/// A word without the punctuation at its end. Two colons may be the end of an address.
fn without_end(word: &str) -> &str {
    if word.ends_with("::") { word } else { word.trim_end_matches(['.', ':', '/']) }
}

/// Whether a text has a name in it that is no part of a longer word.
fn has_apart(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let beside = [text[..at].chars().next_back(), text[at + name.len()..].chars().next()];
        !beside.into_iter().flatten().any(char::is_alphanumeric)
    })
}

fn is_users_path(word: &str) -> bool {
    let starts_with_letter = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_path = word.strip_prefix('/').is_some_and(starts_with_letter) && word.len() > 2;
    let is_systems = || {
        let with_end = format!("{word}/");
        SYSTEM.iter().any(|directory| with_end.starts_with(directory))
    };
    is_path && !is_systems() || word.starts_with("~/") || word.contains("/home/")
}

fn is_full_name(word: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    // A user's name may stand before it, and a port after it.
    let name = word.rsplit('@').next().unwrap_or(word).split(':').next().unwrap_or(word);
    name.rsplit_once('.')
        .is_some_and(|(rest, end)| DOMAINS.contains(&end) && rest.split('.').all(is_label))
}

fn is_address(word: &str) -> bool {
    // A scheme and a user's name may stand before it, and the length of a network, a path, an
    // interface or a port after it.
    let word = word.split_once("://").map_or(word, |(_, rest)| rest);
    let word = word.rsplit('@').next().unwrap_or(word);
    let word = word.split(['/', '%']).next().unwrap_or(word);
    let before_port = word.split(':').next().unwrap_or(word);
    let address = [word, before_port].into_iter().find_map(|word| word.parse::<IpAddr>().ok());
    // These are on every machine.
    let is_usual = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    let parts: Vec<&str> = word.split(':').collect();
    let is_byte = |part: &&str| part.len() == 2 && u8::from_str_radix(part, 16).is_ok();
    let is_hardware = parts.len() == 6 && parts.iter().all(is_byte);
    address.is_some_and(|address| !is_usual(address)) || is_hardware
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_hosts_and_paths_of_users_are_found() {
        let privacy = Privacy::new("build-7");
        let check = |text: &str, expected: Option<&str>| {
            let found = privacy.leaks(&json!({ "a": [text] }));
            let found = found.first().map(|leak| leak.what);
            assert_eq!(found, expected, "{text}");
        };
        check("dimmer probe --json=/home/eve/x.json", Some("a path of a user"));
        check("model /root/.local/state/m.toml", Some("a path of a user"));
        check("~/x", Some("a path of a user"));
        check("/var/home/eve", Some("a path of a user"));
        check("on build-7, CPU 1", Some("the name of this host"));
        check("Build-7.example.org", Some("the name of this host"));
        check("eve@db1.corp.internal:22", Some("the name of a host"));
        check("10.0.3.17", Some("the address of a host"));
        check("02:42:ac:11:00:02", Some("the address of a host"));
        check("10.0.3.17/24", Some("the address of a host"));
        check("http://eve@10.0.3.17:80/x", Some("the address of a host"));
        check("2001:db8::17", Some("the address of a host"));
        check("to 2001:db8:1::, its network", Some("the address of a host"));
        check("fe80::1ff:fe23:4567:890a%eth0", Some("the address of a host"));
        check("[2001:db8::17]:8443", Some("the address of a host"));
        check("2001:db8::/32", Some("the address of a host"));
        check("db_1.corp.internal", Some("the name of a host"));
        for fine in [
            "[::1]:8443",
            "::1/128",
            "listens on [::]:80 and 0.0.0.0:80",
            "std::vector::",
            "6.18.44-fc-v669",
            "nginx/1.22.1",
            "OpenSSL 3.0.22 25 Aug 2026",
            "wrk debian/4.1.0-3",
            "/sys/devices/system/cpu",
            "[\"/sys/fs/cgroup/cpuset\"]",
            "read(/proc/stat)",
            "and/or",
            "arch_prctl(ARCH_SET_CPUID): No such device (os error 19)",
            "127.0.0.1:8443",
            "/",
            "rebuild-77",
            "machines/epyc/probe.json",
            "openssl.cnf",
            "12:30:05",
        ] {
            check(fine, None);
        }
    }

    #[test]
    fn the_name_of_this_host_may_have_points_and_underscores() {
        let privacy = Privacy::new("Build_7.Example");
        let check = |text: &str, expected: bool| {
            assert_eq!(!privacy.leaks(&json!(text)).is_empty(), expected, "{text}");
        };
        check("on build_7.example: no", true);
        check("eve@build_7:22", true);
        check("x-build_7-2", true);
        check("/dev/disk/build_7.example", true);
        check("rebuild_7", false);
        check("build_77", false);
        check("example", false);
    }

    #[test]
    fn a_name_that_says_nothing_is_not_looked_for() {
        for host in ["vm", "localhost", ""] {
            assert_eq!(Privacy::new(host).leaks(&json!(format!("on {host} here"))), []);
        }
    }

    #[test]
    fn documents_are_cleaned() {
        let privacy = Privacy::new("build-7");
        let mut document = json!({ "from": "/root/.x/model.toml", "n": [1, "at build-7: no"] });
        privacy.clean(&mut document);
        assert_eq!(document, json!({ "from": ".../model.toml", "n": [1, "at ...: no"] }));
        assert_eq!(privacy.leaks(&document), []);
    }
}
