//! Which loader starts a program: for made-up files, and for this test's own executable.

use dimmer_scan::{Refused, Start};

const HEADERS: usize = 64;
const PLACE: usize = 0x400;

/// The parts of a program that `start` reads. The file is loaded at address 0.
#[derive(Default)]
struct Program {
    interpreter: Option<&'static str>,
    needed: Vec<&'static str>,
    defines: Vec<&'static str>,
}

impl Program {
    fn bytes(&self) -> Vec<u8> {
        let (mut headers, mut tables) = (Vec::new(), Vec::new());
        let mut header = |kind: u32, offset: usize, size: usize| {
            headers.extend([kind, 4].map(u32::to_le_bytes).concat());
            let offset = u64::try_from(offset).unwrap();
            let size = u64::try_from(size).unwrap();
            headers.extend([offset, offset, offset, size, size, 1].map(u64::to_le_bytes).concat());
        };
        header(1, 0, 0x10_0000);
        if let Some(interpreter) = self.interpreter {
            header(3, PLACE, interpreter.len() + 1);
            tables.extend(interpreter.as_bytes());
            tables.push(0);
        }
        // Strings, symbols, hash table, dynamic section.
        let mut strings = vec![0];
        let mut string = |text: &str| {
            let at = strings.len() as u64;
            strings.extend(text.as_bytes());
            strings.push(0);
            at
        };
        let mut dynamic: Vec<(u64, u64)> =
            self.needed.iter().map(|name| (1, string(name))).collect();
        let mut symbols = vec![0; 24];
        // One bucket, symbols from 1 on, one word of a filter that lets all through.
        let mut hash = [1_u32, 1, 1, 6, u32::MAX, u32::MAX, 1].map(u32::to_le_bytes).concat();
        for (index, name) in self.defines.iter().enumerate() {
            symbols.extend(u32::try_from(string(name)).unwrap().to_le_bytes());
            symbols.extend([0; 20]);
            let of = name
                .bytes()
                .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
            let is_last = u32::from(index + 1 == self.defines.len());
            hash.extend((of & !1 | is_last).to_le_bytes());
        }
        for (tag, table) in [(5, &strings), (6, &symbols)] {
            dynamic.push((tag, (PLACE + tables.len()) as u64));
            tables.extend(table);
        }
        if !self.defines.is_empty() {
            dynamic.push((0x6fff_fef5, (PLACE + tables.len()) as u64));
            tables.extend(hash);
        }
        dynamic.push((0, 0));
        header(2, PLACE + tables.len(), 16 * dynamic.len());
        tables.extend(
            dynamic.iter().flat_map(|(tag, value)| [*tag, *value].map(u64::to_le_bytes)).flatten(),
        );
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(HEADERS, 0);
        file[18] = 62;
        file[32] = u8::try_from(HEADERS).unwrap();
        file[54] = 56;
        file[56] = u8::try_from(headers.len() / 56).unwrap();
        file.extend(headers);
        assert!(file.len() <= PLACE);
        file.resize(PLACE, 0);
        file.extend(tables);
        file
    }
}

fn start(bytes: &[u8]) -> Start {
    dimmer_scan::start(|offset, into| {
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        length
    })
}

const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");

/// The answer of `start` as a text.
fn told(bytes: &[u8]) -> String {
    match start(bytes) {
        Start::Script(name) => format!("script of {}", String::from_utf8_lossy(name.bytes())),
        Start::Refused(Refused::Loader(name)) => {
            format!("loader {}", String::from_utf8_lossy(name.bytes()))
        }
        Start::Refused(Refused::Sanitizer(name)) => name.to_owned(),
        start => format!("{start:?}"),
    }
}

#[test]
fn loaders_are_known_by_their_files() {
    let of = |interpreter| told(&Program { interpreter, ..Program::default() }.bytes());
    assert_eq!(of(GLIBC), "Glibc");
    assert_eq!(of(Some("/nix/store/abc-glibc-2.40/lib/ld-linux-x86-64.so.2")), "Glibc");
    assert_eq!(of(Some("/lib64/ld-lsb-x86-64.so.3")), "Glibc");
    assert_eq!(of(Some("/lib/ld-musl-x86_64.so.1")), "loader /lib/ld-musl-x86_64.so.1");
    assert_eq!(of(Some("/system/bin/linker64")), "loader /system/bin/linker64");
    assert_eq!(of(Some("/ld-linux-x86-64.so.2/ld-musl")), "loader /ld-linux-x86-64.so.2/ld-musl");
    assert_eq!(of(None), "Static");
}

#[test]
fn programs_of_other_kinds_are_refused() {
    let whole = Program { interpreter: GLIBC, ..Program::default() }.bytes();
    for (at, value) in [(4, 1), (18, 3), (18, 183)] {
        let mut other = whole.clone();
        other[at] = value;
        assert_eq!(told(&other), "Refused(Machine)");
    }
}

#[test]
fn sanitizers_are_known_by_what_is_needed_and_defined() {
    let of = |needed: &[&'static str], defines: &[&'static str]| {
        let (needed, defines) = (needed.to_vec(), defines.to_vec());
        told(&Program { interpreter: GLIBC, needed, defines }.bytes())
    };
    assert_eq!(of(&["libm.so.6", "libasan.so.8", "libc.so.6"], &[]), "AddressSanitizer");
    assert_eq!(of(&["libclang_rt.tsan-x86_64.so"], &[]), "ThreadSanitizer");
    assert_eq!(of(&["libm.so.6", "libc.so.6"], &["main", "environ"]), "Glibc");
    assert_eq!(of(&["libc.so.6"], &["main", "__msan_init", "environ"]), "MemorySanitizer");
    assert_eq!(of(&[], &["__asan_init"]), "AddressSanitizer");
    assert_eq!(of(&["libubsan.so.1"], &["__asan_initialised"]), "Glibc");
}

#[test]
fn scripts_name_their_interpreter() {
    assert_eq!(told(b"#! /usr/bin/env python3\nimport this\n"), "script of /usr/bin/env");
    assert_eq!(told(b"#!/bin/sh"), "script of /bin/sh");
    for none in [&b"#!"[..], b"#! \n", b"", b"MZ", b"\x7fELF"] {
        assert_eq!(told(none), "Unknown");
    }
}

#[test]
fn this_test_is_started_by_the_loader_that_it_was_linked_for() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(matches!(start(&own), Start::Glibc | Start::Static), "{:?}", start(&own));
}

#[test]
fn damage_ends_in_an_answer() {
    let whole = Program {
        interpreter: GLIBC,
        needed: vec!["libc.so.6"],
        defines: vec!["main", "__asan_init"],
    };
    let whole = whole.bytes();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            let _ = start(&damaged);
            // Damages whole words too, as numbers are.
            let end = whole.len().min(at + 8);
            damaged[at..end].fill(value);
            let _ = start(&damaged);
        }
        let _ = start(&whole[..at]);
    }
}
