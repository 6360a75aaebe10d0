//! The load of the machine, for commands that measure only where little else runs.

use crate::root::{Root, RootError, parse_cpu_list};

/// Why the load does not allow a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file of the machine cannot be read.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A file of the machine holds something else than expected.
    #[error("{path} holds `{text}`, expected {expected}")]
    Unexpected {
        /// Path of the file.
        path: &'static str,
        /// What it holds.
        text: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The load is above the limit; nothing was measured.
    #[error(
        "the load is {load:.2} on {cpus} CPUs, {:.2} per CPU, above the limit of {limit}: nothing was measured",
        load / *cpus as f64
    )]
    Busy {
        /// Mean number of threads that ran or waited, over the last minute.
        load: f64,
        /// Number of CPUs that are online.
        cpus: usize,
        /// The limit per CPU.
        limit: f64,
    },
}

/// Checks that the load over the last minute, as `/proc/loadavg` has it, is at most `limit` per CPU
/// that is online. In a container that is the host's load on the host's CPUs.
///
/// # Errors
/// [`LoadError::Busy`] if it is higher; others if it cannot be read.
pub fn check(root: &Root, limit: f64) -> Result<(), LoadError> {
    let text = root.text("/proc/loadavg")?;
    let unexpected = |path, text: &str, expected| LoadError::Unexpected {
        path,
        text: text.trim().chars().take(80).collect(),
        expected,
    };
    let load: Option<f64> = text.split(' ').next().and_then(|load| load.parse().ok());
    let load = load.filter(|load| load.is_finite() && *load >= 0.0);
    let load = load.ok_or_else(|| {
        unexpected("/proc/loadavg", &text, "the load averages, as in `0.20 0.18 0.12`")
    })?;
    let text = root.text("/sys/devices/system/cpu/online")?;
    let cpus = parse_cpu_list(text.trim()).map_or(0, |cpus| cpus.len());
    if cpus == 0 {
        let path = "/sys/devices/system/cpu/online";
        return Err(unexpected(path, &text, "a list of CPUs, as in `0-3,8`"));
    }
    let is_low = load <= limit * cpus as f64;
    if is_low { Ok(()) } else { Err(LoadError::Busy { load, cpus, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_on(loadavg: &str, online: &str, limit: f64) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/loadavg", loadavg);
        write("sys/devices/system/cpu/online", online);
        check(&Root::new(directory.path()), limit).map_err(|error| error.to_string())
    }

    #[test]
    fn the_limit_is_per_cpu() {
        assert_eq!(check_on("2.00 9.0 9.0 1/2 3\n", "0-3\n", 0.5), Ok(()));
        assert_eq!(
            check_on("2.01 0 0 1/2 3\n", "0-3\n", 0.5).unwrap_err(),
            "the load is 2.01 on 4 CPUs, 0.50 per CPU, above the limit of 0.5: nothing was measured"
        );
        assert!(check_on("0.01 0 0\n", "0\n", 0.0).is_err());
    }

    #[test]
    fn what_is_no_load_is_named() {
        for text in ["", "high 0 0", "nan 0 0", "-1 0 0"] {
            let error = check_on(text, "0\n", 1.0).unwrap_err();
            assert!(error.contains("/proc/loadavg holds `"), "{error}");
        }
        assert!(check_on("0 0 0", "many\n", 1.0).unwrap_err().contains("cpu/online"));
        let nowhere = tempfile::tempdir().unwrap();
        assert!(matches!(check(&Root::new(nowhere.path()), 1.0), Err(LoadError::Root(_))));
    }
}
