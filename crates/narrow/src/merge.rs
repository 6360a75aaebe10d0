//! How a value is merged with one that the user has already set. The user's choice always stays.

use crate::Width;
use crate::mask::hidden;

/// The name of glibc's tunable for processor features.
const HWCAPS: &str = "glibc.cpu.hwcaps";

/// How to merge a value with the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Not at all: the user's value stays.
    Keep,
    /// A list with this separator. What stands before `=` is the subject of an element. Elements
    /// with the same subject as one of the user's are left out.
    List(char),
    /// `GLIBC_TUNABLES`: `name=value`, separated by colons. One of them is a list of features.
    Tunables,
    /// `OPENSSL_ia32cap`: words of feature bits, separated by colons; `~` marks bits to clear. The
    /// value for a width comes from the masks of CPUID.
    Capabilities,
}

/// The value to set so that both `existing` and `own` apply; `None` if `existing` must stay.
pub(crate) fn merge(how: Merge, existing: &str, own: &str, width: Width) -> Option<String> {
    match how {
        Merge::Keep => None,
        Merge::List(separator) => list(existing, own, separator),
        Merge::Tunables => tunables(existing, own),
        Merge::Capabilities => narrower(existing, width),
    }
}

fn list(existing: &str, own: &str, separator: char) -> Option<String> {
    let subject = |element: &str| element.split('=').next().unwrap_or_default().trim().to_owned();
    let theirs: Vec<String> = existing.split(separator).map(subject).collect();
    let mut more = own.split(separator).filter(|element| !theirs.contains(&subject(element)));
    let first = more.next()?;
    let mut all = format!("{existing}{separator}{first}");
    for element in more {
        all.push(separator);
        all.push_str(element);
    }
    Some(all)
}

fn tunables(existing: &str, own: &str) -> Option<String> {
    let own = own.split_once('=').map_or(own, |(_, features)| features);
    let mut parts: Vec<String> = existing.split(':').map(str::to_owned).collect();
    // If there are several, the last one counts.
    let theirs = parts.iter_mut().rev().find_map(|part| {
        let features = part.strip_prefix(HWCAPS)?.strip_prefix('=')?.to_owned();
        Some((part, features))
    });
    let Some((part, features)) = theirs else {
        parts.retain(|part| !part.is_empty());
        parts.push(format!("{HWCAPS}={own}"));
        return Some(parts.join(":"));
    };
    let bare = |feature: &str| feature.trim_start_matches('-').to_owned();
    let known: Vec<String> = features.split(',').map(bare).collect();
    let more: Vec<&str> = own.split(',').filter(|one| !known.contains(&bare(one))).collect();
    if more.is_empty() {
        return None;
    }
    *part = format!("{HWCAPS}={features},{}", more.join(","));
    Some(parts.join(":"))
}

/// The words of `OPENSSL_ia32cap`, with the bits to clear at a width: leaf 1 (EDX, ECX), leaf 7
/// (EBX, ECX), and leaf 7 (EDX) with its subleaf 1 (EAX). OpenSSL reads the last word since 3.5,
/// and ignores it in earlier versions.
///
/// Adds bits that OpenSSL itself puts into words (XOP is in a reserved bit of leaf 1).
fn masks(width: Width) -> [u64; 3] {
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (one, seven, more) = (hidden(1, 0, width), hidden(7, 0, width), hidden(7, 1, width));
    let xop = match width {
        Width::Bits256 => 0,
        Width::Bits128 => 1 << 43,
    };
    [join(one.edx, one.ecx) | xop, join(seven.ebx, seven.ecx), join(seven.edx, more.eax)]
}

/// The value of `OPENSSL_ia32cap` for a width, if the user has not set it.
pub(crate) fn capabilities(width: Width) -> String {
    write(masks(width).map(Word::Without))
}

/// A word of the variable.
enum Word {
    Bits(u64),
    Without(u64),
}

fn write(words: impl IntoIterator<Item = Word>) -> String {
    let shown = words.into_iter().map(|word| match word {
        Word::Bits(bits) => format!("{bits:#x}"),
        Word::Without(0) => String::new(),
        Word::Without(bits) => format!("~{bits:#x}"),
    });
    shown.collect::<Vec<String>>().join(":")
}

/// The user's value without the hidden bits. Fewer than three words do not become three: since
/// OpenSSL 3.5 a last word of zero also clears words that are missing.
fn narrower(existing: &str, width: Width) -> Option<String> {
    let theirs: Vec<&str> = existing.split(':').map(str::trim).collect();
    let masks = masks(width);
    let mut words = Vec::new();
    for index in 0..theirs.len().max(2) {
        let text = theirs.get(index).copied().unwrap_or_default();
        let mask = masks.get(index).copied().unwrap_or_default();
        words.push(if text.is_empty() {
            Word::Without(mask)
        } else if let Some(bits) = text.strip_prefix('~') {
            Word::Without(number(bits)? | mask)
        } else {
            Word::Bits(number(text)? & !mask)
        });
    }
    Some(write(words))
}

/// A number in C notation.
fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (None, Some(digits)) if !digits.is_empty() => u64::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openssl_loses_what_cpuid_would() {
        assert_eq!(capabilities(Width::Bits256), ":~0x5842dc230000:~0x20002003c0010c");
        assert_eq!(
            capabilities(Width::Bits128),
            "~0x3000180000000000:~0x5e42dc230020:~0xa0003703c0010c"
        );
        assert_ne!(masks(Width::Bits128)[2] & 1 << (32 + 23), 0, "AVX-IFMA");
    }

    #[test]
    fn what_the_user_set_for_openssl_stays() {
        #[track_caller]
        fn check(existing: &str, expected: Option<&str>) {
            assert_eq!(narrower(existing, Width::Bits256).as_deref(), expected, "{existing}");
        }
        check("", Some(":~0x5842dc230000"));
        check("~0x20", Some("~0x20:~0x5842dc230000"));
        check(":~0x20", Some(":~0x5842dc230020"));
        check(":0", Some(":0x0"));
        check("0x10000:0xffffffffffffffff", Some("0x10000:0xffffa7bd23dcffff"));
        check(":~020:0:~1:2", Some(":~0x5842dc230010:0x0:~0x1:0x2"));
        check("::~1", Some(":~0x5842dc230000:~0x20002003c0010d"));
        check("none", None);
    }

    #[test]
    fn tunables_are_merged_by_feature() {
        #[track_caller]
        fn check(existing: &str, expected: Option<&str>) {
            let own = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL";
            assert_eq!(tunables(existing, own).as_deref(), expected, "{existing}");
        }
        check("", Some("glibc.cpu.hwcaps=-AVX512F,-AVX512VL"));
        check(
            "glibc.malloc.check=1",
            Some("glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX512F,-AVX512VL"),
        );
        check(
            "glibc.cpu.hwcaps=-AVX512F,-ERMS:glibc.malloc.check=1",
            Some("glibc.cpu.hwcaps=-AVX512F,-ERMS,-AVX512VL:glibc.malloc.check=1"),
        );
        check("glibc.cpu.hwcaps=AVX512F,-AVX512VL", None);
    }

    #[test]
    fn lists_keep_what_the_user_said_about_the_same_thing() {
        assert_eq!(
            list("http2debug=1", "cpu.avx512f=off", ',').unwrap(),
            "http2debug=1,cpu.avx512f=off"
        );
        assert_eq!(
            list("cpu.avx512f=on", "cpu.avx512f=off,cpu.avx512bw=off", ',').unwrap(),
            "cpu.avx512f=on,cpu.avx512bw=off"
        );
        assert_eq!(list("-Xmx1g -XX:UseAVX=3", "-XX:UseAVX=2", ' '), None);
    }
}
