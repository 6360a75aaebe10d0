//! Whether an entry can be overwritten with a jump.

use dimmer_scan::{Unhookable, scan};
use iced_x86::code_asm::*;

use crate::elf::{CODE, Kind, Library, assemble};

/// Checks the function at the start of the code.
#[track_caller]
fn check(library: &Library, expected: Result<u8, Unhookable>) {
    let scan = scan(&library.bytes()).expect("a sound file");
    let function = scan.at(CODE).expect("a function at the beginning");
    assert_eq!(function.hook, expected, "{function:?}");
}

/// Instructions of 3, 3, 3 and 1 bytes.
fn plain() -> Vec<u8> {
    assemble(|a| {
        a.mov(rax, rbx)?;
        a.mov(rcx, rdx)?;
        a.mov(rsi, rdi)?;
        a.ret()
    })
}

#[test]
fn jump_displaces_whole_instructions() {
    check(&Library::whole(plain()), Ok(6));
}

#[test]
fn function_shorter_than_the_jump_is_refused() {
    let library = Library::new(plain()).function("short", 0, 3);
    check(&library, Err(Unhookable::TooShort { bytes: 3 }));
}

#[test]
fn loop_into_displaced_instructions_is_refused() {
    let code = assemble(|a| {
        let mut again = a.create_label();
        a.mov(rax, rbx)?;
        a.set_label(&mut again)?;
        a.dec(rcx)?;
        a.jne(again)?;
        a.ret()
    });
    check(&Library::whole(code), Err(Unhookable::Entered { offset: 3 }));
}

#[test]
fn loop_behind_the_jump_is_allowed_and_one_to_the_entry_is_not() {
    #[track_caller]
    fn looping(to_entry: bool, expected: Result<u8, Unhookable>) {
        let code = assemble(|a| {
            let (mut first, mut later) = (a.create_label(), a.create_label());
            a.set_label(&mut first)?;
            a.mov(rax, rbx)?;
            a.mov(rcx, rdx)?;
            a.set_label(&mut later)?;
            a.dec(rcx)?;
            a.jne(later)?;
            if to_entry {
                a.jne(first)?
            } else {
                a.call(first)?
            }
            a.ret()
        });
        check(&Library::whole(code), expected);
    }
    looping(false, Ok(6));
    looping(true, Err(Unhookable::Entered { offset: 0 }));
}

#[test]
fn landing_pad_stays() {
    let code = assemble(|a| {
        a.endbr64()?;
        a.mov(rax, rbx)?;
        a.mov(rcx, rdx)?;
        a.ret()
    });
    check(&Library::whole(code), Ok(10));
    let short = assemble(|a| {
        a.endbr64()?;
        a.mov(rax, rbx)?;
        a.ret()
    });
    check(&Library::whole(short), Err(Unhookable::TooShort { bytes: 4 }));
}

#[test]
fn call_among_displaced_instructions_is_refused() {
    let code = assemble(|a| {
        a.mov(rax, rbx)?;
        a.call(CODE + 0x100)?;
        a.ret()
    });
    check(&Library::whole(code), Err(Unhookable::Calls { offset: 3 }));
}

#[test]
fn function_that_takes_flags_is_refused() {
    let taking = assemble(|a| {
        a.mov(rax, rbx)?;
        a.mov(rcx, rdx)?;
        a.adc(rax, rcx)?;
        a.ret()
    });
    check(&Library::whole(taking), Err(Unhookable::TakesFlags));
    let setting = assemble(|a| {
        a.mov(rax, rbx)?;
        a.cmp(rcx, rdx)?;
        a.adc(rax, rcx)?;
        a.ret()
    });
    check(&Library::whole(setting), Ok(6));
}

#[test]
fn part_that_no_call_leads_to_is_refused() {
    check(&Library::new(plain()).part(0, 10, 8), Ok(6));
    check(&Library::new(plain()).part(0, 10, 16), Err(Unhookable::NotCalled));
    // A symbol within a frame.
    let mut code = vec![0x50; 4];
    code.extend(plain());
    let library = Library::new(code).frame(0, 14).function("inner", 4, 10);
    let scan = scan(&library.bytes()).expect("a sound file");
    assert_eq!(scan.at(CODE + 4).expect("a function").hook, Err(Unhookable::NotCalled));
}

#[test]
fn jump_from_another_function_into_displaced_instructions_is_refused() {
    let mut code = plain();
    let second = code.len() as u64;
    // `jmp` to three bytes after the start.
    code.extend([0xeb, u8::try_from(256 - 9).expect("a byte")]);
    let library = Library::new(code).function("one", 0, second).function("two", second, 2);
    check(&library, Err(Unhookable::Entered { offset: 3 }));
}

#[test]
fn relocation_under_the_jump_is_refused() {
    let library = Library::whole(plain()).relative(CODE + 4, 0x100);
    check(&library, Err(Unhookable::Relocated { offset: 4 }));
    let library = Library::whole(plain()).relative(CODE + 6, 0x100);
    check(&library, Ok(6));
}

#[test]
fn resolver_is_refused() {
    let library = Library::new(plain()).symbol("choose", 0, 10, Kind::Resolver);
    check(&library, Err(Unhookable::Resolver));
    check(&Library::whole(plain()).indirect(0x9000, 0), Err(Unhookable::Resolver));
}

#[test]
fn memory_functions_of_the_c_library_are_refused() {
    for name in ["memcpy", "strlen", "__memmove_avx512_unaligned_erms", "wcslen", "bcmp"] {
        let library = Library::new(plain()).function(name, 0, 10);
        check(&library, Ok(6));
        check(&library.soname("libc.so.6"), Err(Unhookable::MemoryFunction));
    }
    check(&Library::new(plain()).function("qsort", 0, 10).soname("libc.so.6"), Ok(6));
}

#[test]
fn wide_function_without_a_name_in_the_c_library_is_refused() {
    let code = assemble(|a| {
        a.vpxor(ymm0, ymm0, ymm0)?;
        a.vpxor(ymm1, ymm1, ymm1)?;
        a.vzeroupper()?;
        a.ret()
    });
    let length = u32::try_from(code.len()).expect("short");
    check(&Library::new(code.clone()).frame(0, length), Ok(8));
    let library = Library::new(code).frame(0, length).soname("libc.so.6");
    check(&library, Err(Unhookable::MemoryFunction));
}

#[test]
fn seed_must_be_aligned_and_follow_the_end_of_code() {
    check(&Library::new(plain()).relative(0x9000, 0), Ok(6));
    #[track_caller]
    fn second(before: &[u8], expected: Result<u8, Unhookable>) {
        let (mut code, start) = (before.to_vec(), before.len() as u64);
        code.extend(plain());
        let library = Library::new(code).relative(0x9000, start);
        let scan = scan(&library.bytes()).expect("a sound file");
        assert_eq!(scan.at(CODE + start).expect("the seed").hook, expected);
    }
    second(&[0xcc; 16], Ok(6));
    second(&[0xcc; 8], Err(Unhookable::DoubtfulEntry));
    second(&[0x50; 16], Err(Unhookable::DoubtfulEntry));
}

#[test]
fn reasons_read_as_sentences() {
    let all = [
        Unhookable::TooShort { bytes: 3 },
        Unhookable::Entered { offset: 3 },
        Unhookable::Relocated { offset: 4 },
        Unhookable::Calls { offset: 3 },
        Unhookable::NotCalled,
        Unhookable::TakesFlags,
        Unhookable::BelowStack { offset: 7 },
        Unhookable::DoubtfulEntry,
        Unhookable::MemoryFunction,
        Unhookable::Resolver,
    ];
    for reason in all {
        let text = reason.to_string();
        assert!(text.len() > 20 && !text.contains("  "), "{text}");
    }
}
