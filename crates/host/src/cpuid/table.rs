//! CPUID registers as text, in the format that `cpuid -r` prints.

use std::collections::BTreeMap;

use raw_cpuid::CpuIdResult;

use crate::root::RootError;

/// Why a table of CPUID registers cannot be used. Fatal for the whole table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuidError {
    /// A line is neither registers nor `xcr0`.
    #[error(
        "cpuid table, line {line}: `{found}`, expected \
         `0x00000007 0x00: eax=0x.. ebx=0x.. ecx=0x.. edx=0x..` or `xcr0: 0x..`"
    )]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The line's text.
        found: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] RootError),
}

/// Registers by leaf and subleaf, and XCR0.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    registers: BTreeMap<(u32, u32), CpuIdResult>,
    pub(super) xcr0: u64,
}

impl Table {
    /// Parses `text`. Skips empty lines, comments after `#` and `CPU 0:` headings. If several
    /// processors are listed, the first one is used.
    pub(super) fn parse(text: &str) -> Result<Self, CpuidError> {
        let mut table = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() || line.starts_with("CPU") {
                continue;
            }
            table
                .line(line)
                .ok_or_else(|| CpuidError::Line { line: index + 1, found: line.to_owned() })?;
        }
        Ok(table)
    }

    /// The registers of a leaf; zero if the table lacks it.
    pub(super) fn registers(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        let zero = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        self.registers.get(&(leaf, subleaf)).copied().unwrap_or(zero)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (key, value) = line.split_once(':')?;
        if key == "xcr0" {
            self.xcr0 = hexadecimal(value.trim())?;
            return Some(());
        }
        let (leaf, subleaf) = key.trim().split_once(' ')?;
        let key = (narrow(leaf)?, narrow(subleaf.trim())?);
        let mut registers = value.split_whitespace();
        let mut next = |name: &str| narrow(registers.next()?.strip_prefix(name)?);
        let result = CpuIdResult {
            eax: next("eax=")?,
            ebx: next("ebx=")?,
            ecx: next("ecx=")?,
            edx: next("edx=")?,
        };
        self.registers.entry(key).or_insert(result);
        Some(())
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn narrow(text: &str) -> Option<u32> {
    u32::try_from(hexadecimal(text)?).ok()
}
