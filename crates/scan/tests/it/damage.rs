//! Files that are damaged, made to do harm, or not for this scan. The scan must return soon, and
//! never panic.

use std::time::{Duration, Instant};

use dimmer_scan::{Code, Leaves, Scan, ScanError, scan};

use crate::elf::Library;

/// Far more than any file here needs: builds without optimization also run on busy machines.
const SOON: Duration = Duration::from_secs(10);

/// The executable of this test, a real file with all that a linker writes.
fn real() -> Vec<u8> {
    let path = std::env::current_exe().expect("the test runs from a file");
    std::fs::read(path).expect("which can be read")
}

/// A made-up file with all that a scan reads.
fn made_up() -> Vec<u8> {
    let code = [&[0x90; 7][..], &[0xc3], &[0xcc; 8]].concat().repeat(64);
    let mut library = Library::new(code).soname("libsmall.so.1").build_id(&[7; 20]);
    for index in 0..16 {
        library = library
            .function(&format!("named_{index}"), index * 16, 8)
            .frame(0x100 + index * 16, 8)
            .relative(0x9000 + index * 8, 0x200 + index * 16)
            .packed(0x300 + index * 16);
    }
    library.bytes()
}

#[track_caller]
fn answers_soon(bytes: &[u8], what: impl Fn() -> String) {
    let start = Instant::now();
    let answer = scan(bytes);
    let took = start.elapsed();
    assert!(took < SOON, "{}: took {took:?}", what());
    match answer {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(scan) => leaves_answer_soon(bytes, &scan, what),
    }
}

/// Follows some of the functions that were found.
fn leaves_answer_soon(bytes: &[u8], scan: &Scan, what: impl Fn() -> String) {
    let start = Instant::now();
    let code = Code::read(bytes).expect("what was scanned");
    let mut leaves = Leaves::read(bytes, &code, scan).expect("what was scanned");
    for function in scan.functions.iter().take(32) {
        if let Err(why) = leaves.at(function.addresses.start) {
            assert!(!why.to_string().is_empty());
        }
    }
    let took = start.elapsed();
    assert!(took < SOON, "{}: leaf functions took {took:?}", what());
}

/// Numbers that look random but are the same every time (Marsaglia's xorshift, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("less than a usize")
    }
}

#[test]
fn leaf_functions_of_its_own_executable_are_told_from_others() {
    let bytes = real();
    let scan = scan(&bytes).expect("a sound file");
    let code = Code::read(&bytes).expect("a sound file");
    let mut leaves = Leaves::read(&bytes, &code, &scan).expect("a sound file");
    let starts = scan.functions.iter().map(|function| function.addresses.start);
    let (found, others): (Vec<_>, Vec<_>) =
        starts.map(|start| leaves.at(start)).partition(Result::is_ok);
    assert!(!found.is_empty() && !others.is_empty());
}

#[test]
fn scans_its_own_executable() {
    let scan = scan(&real()).expect("a sound file");
    assert!(scan.functions.len() > 100);
    assert!(scan.totals.function_bytes <= scan.totals.code_bytes);
    let disjoint =
        scan.functions.windows(2).all(|two| two[0].addresses.end <= two[1].addresses.start);
    assert!(disjoint, "functions by address, disjoint");
    assert!(scan.functions.iter().any(|function| function.name.is_some()));
}

#[test]
fn same_bytes_give_the_same_result() {
    let bytes = real();
    assert_eq!(scan(&bytes), scan(&bytes));
}

#[test]
fn every_truncation_of_a_made_up_file_is_refused() {
    let bytes = made_up();
    assert!(scan(&bytes).is_ok());
    for length in 0..bytes.len() {
        // The section headers are last, so each of these files lacks some.
        let error = scan(&bytes[..length]).expect_err("truncated");
        let known = matches!(error, ScanError::NotElf { .. } | ScanError::Damaged { .. });
        assert!(known, "{length} bytes: {error}");
    }
}

#[test]
fn truncations_of_a_real_file_are_answered() {
    let bytes = real();
    for length in (0..bytes.len()).step_by(bytes.len() / 200 + 1) {
        answers_soon(&bytes[..length], || format!("{length} bytes"));
    }
}

#[test]
fn flipped_bytes_of_a_made_up_file_are_answered() {
    let sound = made_up();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..20_000 {
        let mut bytes = sound.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] = u8::try_from(random.below(256)).expect("a byte");
        }
        answers_soon(&bytes, || format!("round {round}"));
    }
}

#[test]
fn flipped_bytes_of_a_real_file_are_answered() {
    let sound = beginning(&real(), 128 * 1024);
    let found = scan(&sound).expect("a sound beginning").functions.len();
    assert!(found > 100, "only {found} functions are left to damage");
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..500 {
        let mut bytes = sound.clone();
        for _ in 0..=random.below(16) {
            // Half of them at headers, which describe the tables.
            let headers = bytes.len() - 4096;
            let at = match random.below(4) {
                0 => random.below(64),
                1 => headers + random.below(4096),
                _ => random.below(bytes.len()),
            };
            bytes[at] = u8::try_from(random.below(256)).expect("a byte");
        }
        answers_soon(&bytes, || format!("round {round}"));
    }
}

/// `real`, cut after `code` bytes of its largest executable section, and followed by its section
/// headers. Sections that end later are cut off.
fn beginning(real: &[u8], code: usize) -> Vec<u8> {
    let word = |at: usize| {
        let field = real[at..at + 8].try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(field)).expect("an offset")
    };
    let half = |at: usize| usize::from(u16::from_le_bytes([real[at], real[at + 1]]));
    let (table, count, names) = (word(40), half(60), half(62));
    let headers = || (0..count).map(|index| table + 64 * index);
    // Flag 4 marks code.
    let executable = headers().filter(|header| word(header + 8) & 4 != 0);
    let largest = executable.max_by_key(|header| word(header + 32)).expect("code");
    let length = (word(largest + 24) + code).min(real.len());
    let mut bytes = real[..length].to_vec();
    for (index, header) in headers().enumerate() {
        let (start, size) = (word(header + 24), word(header + 32));
        let mut copy = real[header..header + 64].to_vec();
        if index == names {
            // After the headers, since it would be cut off with the late sections.
            copy[24..32].copy_from_slice(&((length + 64 * count) as u64).to_le_bytes());
        } else {
            // Whole symbols and relocations, which have 24 bytes each.
            let left = length.saturating_sub(start);
            let size = if size > left { left / 24 * 24 } else { size };
            let start = if size == 0 { 0 } else { start };
            copy[24..32].copy_from_slice(&(start as u64).to_le_bytes());
            copy[32..40].copy_from_slice(&(size as u64).to_le_bytes());
        }
        bytes.extend(copy);
    }
    let names = table + 64 * names;
    bytes.extend(&real[word(names + 24)..word(names + 24) + word(names + 32)]);
    bytes[40..48].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

#[test]
fn many_functions_with_one_long_name_are_refused() {
    let name = "a".repeat(1 << 16);
    let mut library = Library::new(vec![0x90; 4096]).function(&name, 0, 1);
    for offset in 1..4096 {
        library = library.function("b", offset, 1);
    }
    let mut bytes = library.bytes();
    // The names of all symbols start at the same place, that of the long one.
    let begin = |bytes: &[u8]| u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes"));
    let header = usize::try_from(begin(&bytes)).expect("an offset") + 2 * 64;
    let table =
        u64::from_le_bytes(bytes[header + 24..header + 32].try_into().expect("eight bytes"));
    let table = usize::try_from(table).expect("an offset");
    for index in 1..=4096 {
        bytes[table + 24 * index..table + 24 * index + 4].copy_from_slice(&1_u32.to_le_bytes());
    }
    let error = scan(&bytes).expect_err("names overlap");
    assert!(matches!(error, ScanError::Damaged { .. }), "{error}");
}

/// The file's bytes, with the section of this size made one of packed relocations (RELR).
fn with_packed_relocations(mut bytes: Vec<u8>, size: u64) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let headers = (usize::try_from(word(40)).expect("an offset")..bytes.len()).step_by(64);
    let header = headers.into_iter().find(|at| word(at + 32) == size).expect("the section");
    bytes[header + 4] = 19;
    // Part of the process's memory.
    bytes[header + 8] = 2;
    bytes
}

#[test]
fn more_packed_relocations_than_words_are_refused() {
    let library = |words: Vec<u8>| {
        let size = words.len() as u64;
        let library = Library::whole(vec![0x90; 4096]).section("packed", words);
        with_packed_relocations(library.bytes(), size)
    };
    // Each word stands for 63 relocations.
    check_refusal(
        &library(vec![0xff; 1 << 20]),
        "damaged or truncated: relocations: more than the file has words",
    );
    let one_word_in_eight = [&[0xff; 8][..], &[0; 56]].concat();
    assert!(scan(&library(one_word_in_eight)).is_ok());
}

#[test]
fn a_path_of_more_directories_than_fit_into_memory_is_refused() {
    let library = |path: &'static str| {
        let mut bytes = Library::whole(vec![0x90; 4096]).soname(path).bytes();
        // The dynamic section has one entry: from a name, it becomes a path.
        let entry = [14_u64, 1].map(u64::to_le_bytes).concat();
        let at = bytes.windows(16).position(|window| window == entry).expect("the entry");
        bytes[at] = 29;
        bytes
    };
    assert_eq!(scan(&library("/a:/b")).expect("a sound file").runpath, ["/a", "/b"]);
    let separators: &'static str = Box::leak(":".repeat(1 << 20).into_boxed_str());
    check_refusal(
        &library(separators),
        "damaged or truncated: dynamic section: names overlap too often, or have too many directories",
    );
}

#[test]
fn nested_loops_do_not_take_the_square_of_their_number() {
    // A wide instruction, then 200,000 jumps back to it.
    let mut code = vec![0xc5, 0xfd, 0xef, 0xc0];
    while code.len() < 1_200_000 {
        let distance = i32::try_from(code.len() + 6).expect("small");
        code.extend([0x0f, 0x85]);
        code.extend((-distance).to_le_bytes());
    }
    answers_soon(&Library::whole(code).bytes(), || "nested loops".to_owned());
}

#[test]
fn many_entries_inside_a_function_do_not_take_the_square_of_their_number() {
    // Instructions that set no flags, then equally many jumps to them from another function.
    let count = 100_000_u32;
    let mut code = [0xc5, 0xfd, 0xef, 0xc0].repeat(100_000);
    for number in 0..count {
        let distance = i64::from(4 * number) - i64::from(4 * count + 5 * (number + 1));
        code.push(0xe9);
        code.extend(i32::try_from(distance).expect("small").to_le_bytes());
    }
    let library = Library::new(code).frame(0, 4 * count).frame(4 * u64::from(count), 5 * count);
    answers_soon(&library.bytes(), || "entries".to_owned());
    let found = scan(&library.bytes()).expect("a sound file");
    assert_eq!(found.functions[0].entries.len(), 99_999);
}

#[test]
fn many_functions_without_flags_do_not_take_the_square_of_their_number() {
    let mut library = Library::new([0x48, 0x89, 0xd8].repeat(200_000));
    for number in 0..100_000 {
        library = library.frame(6 * number, 6);
    }
    answers_soon(&library.bytes(), || "functions".to_owned());
}

#[track_caller]
fn check_refusal(bytes: &[u8], expected: &str) {
    assert_eq!(scan(bytes).expect_err("not for this scan").to_string(), expected);
}

#[test]
fn says_that_a_file_is_no_elf_file() {
    check_refusal(
        b"#!/bin/sh\n",
        "not an ELF file: it begins with the bytes [23, 21, 2f, 62], not with 7f 45 4c 46",
    );
    check_refusal(b"", "not an ELF file: it begins with the bytes [], not with 7f 45 4c 46");
}

#[test]
fn says_which_processor_a_file_is_for() {
    let mut bytes = made_up();
    bytes[18] = 183;
    check_refusal(
        &bytes,
        "an ELF file for AArch64 with 64-bit addresses; only x86-64 can be scanned",
    );
    let mut bytes = made_up();
    bytes[4] = 1;
    check_refusal(
        &bytes,
        "an ELF file for x86-64 with 32-bit addresses; only x86-64 can be scanned",
    );
}

#[test]
fn says_that_a_file_is_not_linked() {
    let mut bytes = made_up();
    bytes[16] = 1;
    check_refusal(
        &bytes,
        "an ELF file of type 1 (an object before linking); only linked programs and libraries can \
         be scanned",
    );
}

#[test]
fn says_that_section_headers_are_missing() {
    let mut bytes = made_up();
    bytes[40..48].fill(0);
    bytes[60] = 0;
    check_refusal(&bytes, "an ELF file without section headers, which say where its code is");
}

#[test]
fn says_where_a_file_is_damaged() {
    let bytes = made_up();
    let error = scan(&bytes[..bytes.len() - 1]).expect_err("truncated").to_string();
    assert!(error.starts_with("damaged or truncated: section headers: "), "{error}");
}

#[test]
fn what_a_file_needs_is_told_without_a_scan() {
    let needed = dimmer_scan::needed(&real()).expect("a program");
    let scan = scan(&real()).expect("a program");
    assert_eq!((needed.libraries, needed.runpath), (scan.needed, scan.runpath));
    assert!(!needed.is_go);
    assert!(dimmer_scan::needed(b"#!/bin/sh").is_err());
}

/// A program that changes its own code has a segment that is writable, too.
#[test]
fn code_that_may_change_is_found() {
    const WRITABLE: u8 = 2;
    let mut bytes = real();
    assert_eq!(Code::read(&bytes).unwrap().writable().unwrap(), []);
    // Program headers of 56 bytes each, from byte 64 on: type, flags, offset, address, …
    let number = usize::from(u16::from_le_bytes(bytes[56..58].try_into().unwrap()));
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let headers = (0..number).map(|header| 64 + 56 * header);
    let is_code = |at: &usize| word(&bytes, *at) == 1 && word(&bytes, at + 4) & 1 != 0;
    let code = headers.into_iter().find(is_code).unwrap();
    let address = u64::from_le_bytes(bytes[code + 16..code + 24].try_into().unwrap());
    bytes[code + 4] |= WRITABLE;
    let found = Code::read(&bytes).unwrap().writable().unwrap();
    assert!(found.len() == 1 && found[0].start == address, "{found:?}");
}
