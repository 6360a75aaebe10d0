//! Names of functions in memory that a program generated, from the files `perf-PID.map` that
//! virtual machines for Java, .NET, JavaScript and others write on request.
//!
//! Source: Linux, `tools/perf/Documentation/jit-interface.txt`: a line for each function, with
//! start and size in hexadecimal digits and the name.

use std::collections::BTreeMap;

/// The functions of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfMap {
    /// End and name, by start. Of functions at the same place the last one stays.
    functions: BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// Reads such a file. Lines of another form are left out, as `perf` does.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let hexadecimal = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let functions = text.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ' ');
            let (start, size) = (hexadecimal(parts.next()?)?, hexadecimal(parts.next()?)?);
            Some((start, (start.saturating_add(size), parts.next()?.trim().to_owned())))
        });
        Self { functions: functions.collect() }
    }

    /// Start and name of the function at an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<(u64, &str)> {
        let (start, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then_some((*start, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_address_and_damaged_lines_left_out() {
        let map =
            PerfMap::read("1000 20 LMain;run(I)V\nnonsense\n0x2000 0x10 a b\n3000 zz c\n4000");
        assert_eq!(map.at(0x1010), Some((0x1000, "LMain;run(I)V")));
        assert_eq!(map.at(0x200f), Some((0x2000, "a b")));
        assert_eq!((map.at(0xfff), map.at(0x1020), map.at(0x3000)), (None, None, None));
    }
}
