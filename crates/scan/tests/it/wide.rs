//! A search for wide functions alone finds them as a scan of all functions does.

use std::collections::BTreeSet;
use std::path::PathBuf;

use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Function, ScanError, scan, scan_wide};
use iced_x86::code_asm::{rsp, ymm0, ymm1, ymm2, zmm0, zmm1};

use crate::elf::{CODE, Library, assemble};

pub(crate) const WIDE: [InstructionClass; 5] = [
    InstructionClass::Light256,
    InstructionClass::Heavy256,
    InstructionClass::Light512,
    InstructionClass::Heavy512,
    InstructionClass::Tile,
];

/// Compares with a scan of all functions, for these classes. Returns how many functions have them.
#[track_caller]
pub(crate) fn check(bytes: &[u8], classes: &[InstructionClass]) -> usize {
    let holds =
        |function: &Function| classes.iter().any(|class| function.instructions.of(*class) > 0);
    let mut all = scan(bytes).expect("a file").functions;
    all.retain(holds);
    all.iter_mut().for_each(|function| function.loops.clear());
    let wide = scan_wide(bytes, &classes.iter().copied().collect()).expect("a file");
    assert_eq!(wide, all);
    wide.len()
}

#[test]
fn in_real_files() {
    let own = std::env::current_exe().expect("the test runs from a file");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("what it has mapped");
    let mapped = maps.lines().filter_map(|line| Some(format!("/{}", line.split_once('/')?.1)));
    let mut files: BTreeSet<PathBuf> = mapped.map(PathBuf::from).collect();
    files.insert(own);
    // Libraries with wide code in assembly and in C, where they are installed.
    for name in ["libm.so.6", "libcrypto.so.3", "libx264.so.164", "libdav1d.so.6", "libz.so.1"] {
        files.insert(PathBuf::from(format!("/lib/x86_64-linux-gnu/{name}")));
    }
    let code = files.iter().filter_map(|file| std::fs::read(file).ok());
    let code: Vec<Vec<u8>> = code.filter(|bytes| scan_wide(bytes, &WIDE.into()).is_ok()).collect();
    let found: usize = code.iter().map(|bytes| check(bytes, &WIDE)).sum();
    for class in WIDE {
        for bytes in &code {
            let _ = check(bytes, &[class]);
        }
    }
    // The C library has wide functions on every machine.
    assert!(found > 0, "{files:?}");
}

/// Code that others lead into, that leads into others, keeps data below the stack pointer, changes
/// stacks, or is wide, in pieces in random order.
#[test]
fn in_files_made_at_random() {
    const PIECES: [&[u8]; 18] = [
        &[0xc5, 0xfd, 0xfe, 0xc1],                   // vpaddd ymm0, ymm0, ymm1
        &[0xc5, 0xfd, 0xfe, 0xc1], // again, so that half of the functions are wide
        &[0x62, 0xf1, 0xfd, 0x48, 0x59, 0xc1], // vmulpd zmm0, zmm0, zmm1
        &[0xc3],                   // ret
        &[0x31, 0xc0],             // xor eax, eax
        &[0x90],                   // nop
        &[0xcc, 0xcc, 0xcc],       // int3
        &[0x48, 0x89, 0x44, 0x24, 0xf8], // mov [rsp - 8], rax
        &[0x48, 0x8b, 0x27],       // mov rsp, [rdi]
        &[0x48, 0x01, 0xc4],       // add rsp, rax
        &[0x48, 0x94],             // xchg rsp, rax
        &[0x48, 0x83, 0xec, 0x08], // sub rsp, 8
        &[0x48, 0x83, 0xc4, 0x08], // add rsp, 8
        &[0x67, 0x8d],             // starts lea with a short address, of what follows
        &[0xff, 0xe0],             // jmp rax
        &[0x8f, 0xe8],             // starts an XOP instruction
        &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0], // nop
        &[0x06],                   // invalid
    ];
    let mut random = fastrand::Rng::with_seed(22);
    let (mut wide, mut hooked) = (0, 0);
    for _ in 0..2_000 {
        let mut code = Vec::new();
        let mut begins = Vec::new();
        let length = random.i32(200..2_000);
        while code.len() < 64 + length.unsigned_abs() as usize {
            if random.u8(..) < 40 {
                begins.push(code.len() as u64);
            }
            let to = random.i32(0..length);
            let near = random.i8(..);
            let distance = to - i32::try_from(code.len()).expect("short");
            match random.u8(0..24) {
                0 => code.extend([0xe8].into_iter().chain((distance - 5).to_le_bytes())),
                1 => code.extend([0xe9].into_iter().chain((distance - 5).to_le_bytes())),
                2 => code.extend([0x0f, 0x84].into_iter().chain((distance - 6).to_le_bytes())),
                3 => {
                    code.extend([0x48, 0x8d, 0x05].into_iter().chain((distance - 7).to_le_bytes()))
                }
                4 => code.extend([0x74, near.cast_unsigned()]),
                5 => code.extend([0xeb, near.cast_unsigned()]),
                piece => code.extend(PIECES[usize::from(piece - 6)]),
            }
            if random.u8(..) < 20 {
                code.resize(code.len().next_multiple_of(16), 0x90);
            }
        }
        let end = code.len() as u64;
        let mut library = Library::new(code);
        for (number, begin) in begins.iter().enumerate() {
            let next = begins.get(number + 1).copied().unwrap_or(end);
            let size = random.u64(1..=(next - begin).max(1));
            library = match random.u8(0..4) {
                0 => library.function(&format!("f{number}"), *begin, size),
                1 => library.frame(*begin, u32::try_from(size).expect("short")),
                2 => library.relative(0x9000 + number as u64 * 8, *begin),
                _ => library,
            };
        }
        let bytes = library.bytes();
        for classes in [&WIDE[..], &WIDE[3..4]] {
            wide += check(&bytes, classes);
        }
        let found = scan(&bytes).expect("a file").functions;
        hooked += found.iter().filter(|function| function.hook.is_ok()).count();
    }
    assert!(wide > 4_000 && hooked > 4_000, "{wide} {hooked}");
}

#[test]
fn in_functions_and_where_none_is_known() {
    use InstructionClass::{Heavy512, Light256};
    let wide = assemble(|a| {
        a.vpxor(ymm0, ymm1, ymm2)?;
        a.ret()
    });
    let known = Library::new(wide.clone()).function("wide", 0, wide.len() as u64);
    assert_eq!(check(&known.bytes(), &[Light256]), 1);
    assert_eq!(check(&known.bytes(), &[Heavy512]), 0);
    let led_to = Library::new(wide).relative(0x9000, 0);
    assert_eq!(check(&led_to.bytes(), &[Light256]), 1);
    let heavy = assemble(|a| {
        a.vmulpd(zmm0, zmm1, zmm1)?;
        a.ret()
    });
    let heavy = Library::new(heavy.clone()).function("heavy", 0, heavy.len() as u64);
    assert_eq!(check(&heavy.bytes(), &[Heavy512]), 1);
}

/// A function that only a pointer leads to is hooked only if it is shown to return. That depends on
/// the function that it calls.
#[test]
fn that_call_functions_which_are_not_asked_for() {
    use InstructionClass::Heavy512;
    for returns in [true, false] {
        let mut code = assemble(|a| {
            a.vmulpd(zmm0, zmm1, zmm1)?;
            a.sub(rsp, 8)?;
            a.call(CODE + 64)?;
            a.add(rsp, 8)?;
            a.ret()
        });
        code.resize(64, 0xcc);
        code.extend(assemble(|a| {
            a.vpxor(ymm0, ymm1, ymm2)?;
            if returns { a.ret() } else { a.ud2() }
        }));
        let end = code.len() as u64;
        let library = Library::new(code).relative(0x9000, 0).function("called", 64, end - 64);
        let bytes = library.bytes();
        assert_eq!(check(&bytes, &[Heavy512]), 1);
        let found = scan_wide(&bytes, &[Heavy512].into()).expect("a file");
        assert_eq!(found[0].hook.is_ok(), returns, "{:?}", found[0].hook);
    }
}

#[test]
fn a_constant_that_looks_like_one_is_none() {
    // mov eax, 0xc1f4edc5, whose constant would be `vpor ymm, ...` with the bytes after it; ret
    let constant = [0xb8, 0xc5, 0xed, 0xeb, 0xc2, 0xc3];
    let library = Library::new(constant.to_vec()).function("constant", 0, 6);
    assert_eq!(check(&library.bytes(), &WIDE), 0);
}

#[test]
fn what_is_no_program_is_refused() {
    let refused = scan_wide(b"none", &WIDE.into());
    assert!(matches!(refused, Err(ScanError::NotElf { .. })), "{refused:?}");
}
