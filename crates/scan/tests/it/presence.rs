//! What is said of a file without scanning it, beside what a scan finds.

use std::collections::BTreeSet;

use dimmer_processor::class::InstructionClass;
use dimmer_scan::{may_hold, scan};
use iced_x86::code_asm::{ymm0, ymm1, ymm2, zmm0, zmm1};

use crate::elf::{Library, assemble};

const WIDE: [InstructionClass; 5] = [
    InstructionClass::Light256,
    InstructionClass::Heavy256,
    InstructionClass::Light512,
    InstructionClass::Heavy512,
    InstructionClass::Tile,
];

/// For each class alone: where nothing is said to be, a scan finds nothing. The classes that may be there.
#[track_caller]
fn check(bytes: &[u8]) -> Vec<InstructionClass> {
    let scan = scan(bytes).expect("a file");
    let holds = |class: &InstructionClass| {
        let found = scan.functions.iter().any(|function| function.instructions.of(*class) > 0);
        let may = may_hold(bytes, &BTreeSet::from([*class])).expect("a file");
        assert!(may || !found, "{class} is there");
        may
    };
    WIDE.into_iter().filter(holds).collect()
}

#[test]
fn real_files_hold_what_is_found_in_them() {
    let own = std::env::current_exe().expect("the test runs from a file");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("what it has mapped");
    let mapped =
        maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}"));
    let mut files: BTreeSet<String> = mapped.filter(|path| path.contains(".so")).collect();
    files.insert(own.display().to_string());
    // Libraries with wide code in assembly and in C, where they are installed.
    for name in ["libm.so.6", "libcrypto.so.3", "libx264.so.164", "libdav1d.so.6", "libz.so.1"] {
        files.insert(format!("/lib/x86_64-linux-gnu/{name}"));
    }
    for file in files {
        if let Ok(bytes) = std::fs::read(&file) {
            check(&bytes);
        }
    }
}

#[test]
fn instructions_are_found_in_functions_and_where_none_is_known() {
    use InstructionClass::{Heavy512, Light256};
    let wide = assemble(|a| {
        a.vpxor(ymm0, ymm1, ymm2)?;
        a.ret()
    });
    let known = Library::new(wide.clone()).function("wide", 0, wide.len() as u64);
    assert_eq!(check(&known.bytes()), [Light256]);
    assert_eq!(check(&Library::new(wide).bytes()), [Light256]);
    let heavy = assemble(|a| {
        a.vmulpd(zmm0, zmm1, zmm1)?;
        a.ret()
    });
    let heavy = Library::new(heavy.clone()).function("heavy", 0, heavy.len() as u64);
    assert_eq!(check(&heavy.bytes()), [Heavy512]);
}

#[test]
fn a_constant_that_looks_like_one_is_none() {
    // mov eax, 0xc1f4edc5, whose constant would be `vpor ymm, ...` with what follows; ret
    let constant = [0xb8, 0xc5, 0xed, 0xeb, 0xc2, 0xc3];
    let library = Library::new(constant.to_vec()).function("constant", 0, 6);
    assert_eq!(check(&library.bytes()), []);
    // Where nobody says that a function begins one byte before, only a scan can tell.
    assert_eq!(check(&Library::new(constant.to_vec()).bytes()), [InstructionClass::Light256]);
}

#[test]
fn narrow_code_is_looked_for_by_a_scan_alone() {
    let library = Library::new(vec![0xc3]).function("f", 0, 1).bytes();
    for class in [InstructionClass::Scalar, InstructionClass::Light128, InstructionClass::Heavy128]
    {
        assert!(may_hold(&library, &BTreeSet::from([class])).expect("a file"));
    }
    assert!(!may_hold(&library, &BTreeSet::new()).expect("a file"));
    assert!(may_hold(b"none", &BTreeSet::from([InstructionClass::Tile])).is_err());
}
