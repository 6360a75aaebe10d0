//! What a scan reports of the content of a function.

use std::path::Path;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_scan::{Function, scan};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::elf::{CODE, Library, assemble};

#[track_caller]
fn check(
    write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    expect: impl FnOnce(&Function),
) {
    let scan = scan(&Library::whole(assemble(write)).bytes()).expect("a sound file");
    assert_eq!(scan.functions.len(), 1, "{:?}", scan.functions);
    expect(&scan.functions[0]);
}

#[test]
fn counts_instructions_by_class() {
    check(
        |a| {
            a.mov(rax, rbx)?;
            a.paddd(xmm0, xmm1)?;
            a.vaddps(ymm0, ymm1, ymm2)?;
            a.vaddps(zmm0, zmm1, zmm2)?;
            a.vpaddd(zmm0, zmm1, zmm2)?;
            a.evex().vpaddd(ymm16, ymm17, ymm18)?;
            a.kandw(k1, k2, k3)?;
            a.vzeroupper()?;
            a.ret()
        },
        |function| {
            let of = |class| function.instructions.of(class);
            assert_eq!(of(InstructionClass::Scalar), 4);
            assert_eq!(of(InstructionClass::Light128), 1);
            assert_eq!(of(InstructionClass::Heavy256), 1);
            assert_eq!(of(InstructionClass::Light256), 1);
            assert_eq!(of(InstructionClass::Heavy512), 1);
            assert_eq!(of(InstructionClass::Light512), 1);
            assert_eq!(function.instructions.total(), 9);
            assert_eq!(function.instructions.wide(), 4);
            assert_eq!((function.zmm, function.evex), (2, 3));
            assert!(function.vzeroupper);
            assert_eq!(function.heaviest(), Some(InstructionClass::Heavy512));
        },
    );
}

#[test]
fn memory_of_512_bits_without_a_register_names_no_zmm() {
    check(
        |a| {
            a.vcvtpd2ps(ymm1, zmmword_ptr(rax))?;
            a.ret()
        },
        |function| {
            assert_eq!(function.zmm, 0);
            assert_eq!(function.heaviest(), Some(InstructionClass::Heavy512));
        },
    );
}

#[track_caller]
fn check_dirty(dirty: bool, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
    check(write, |function| assert_eq!(function.may_return_dirty, dirty));
}

#[test]
fn returning_after_a_wide_write_is_dirty() {
    check_dirty(true, |a| {
        a.vpaddd(ymm1, ymm2, ymm3)?;
        a.ret()
    });
}

#[test]
fn clearing_the_upper_halves_makes_clean() {
    check_dirty(false, |a| {
        a.vpaddd(ymm1, ymm2, ymm3)?;
        a.vzeroupper()?;
        a.ret()
    });
}

#[test]
fn reads_stores_and_high_registers_leave_clean() {
    check_dirty(false, |a| {
        a.vptest(ymm1, ymm2)?;
        a.vmovdqu(ymmword_ptr(rax), ymm1)?;
        a.vpaddd(zmm16, zmm17, zmm18)?;
        a.ret()
    });
}

#[test]
fn early_return_taken_while_dirty_is_dirty() {
    check_dirty(true, |a| {
        let mut out = a.create_label();
        a.vpaddd(ymm1, ymm2, ymm3)?;
        a.test(rax, rax)?;
        a.je(out)?;
        a.vzeroupper()?;
        a.ret()?;
        a.set_label(&mut out)?;
        a.ret()
    });
}

#[test]
fn early_return_taken_before_the_wide_write_is_clean() {
    check_dirty(false, |a| {
        let mut out = a.create_label();
        a.test(rax, rax)?;
        a.je(out)?;
        a.vpaddd(ymm1, ymm2, ymm3)?;
        a.vzeroupper()?;
        a.set_label(&mut out)?;
        a.ret()
    });
}

#[test]
fn tail_call_while_dirty_is_dirty() {
    check_dirty(true, |a| {
        a.vpaddd(ymm1, ymm2, ymm3)?;
        a.jmp(0x8000)
    });
}

#[test]
fn finds_the_innermost_loop_with_wide_instructions() {
    check(
        |a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.set_label(&mut outer)?;
            a.vpxor(ymm0, ymm0, ymm0)?; // 4 bytes
            a.set_label(&mut inner)?;
            a.vaddps(zmm0, zmm1, zmm2)?; // 6
            a.dec(rcx)?; // 3
            a.jne(inner)?; // 2
            a.dec(rdx)?; // 3
            a.jne(outer)?; // 2
            a.ret()
        },
        |function| {
            assert_eq!(function.loops.len(), 1, "{:?}", function.loops);
            assert_eq!(function.loops[0].addresses, CODE + 4..CODE + 15);
            assert_eq!(function.loops[0].instructions.of(InstructionClass::Heavy512), 1);
            assert_eq!(function.loops[0].instructions.of(InstructionClass::Light256), 0);
            assert_eq!(function.loops[0].instructions.total(), 3);
        },
    );
}

#[test]
fn outer_loop_counts_where_the_inner_one_is_not_wide() {
    check(
        |a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.set_label(&mut outer)?;
            a.vpxor(ymm0, ymm0, ymm0)?;
            a.set_label(&mut inner)?;
            a.dec(rcx)?;
            a.jne(inner)?;
            a.dec(rdx)?;
            a.jne(outer)?;
            a.ret()
        },
        |function| {
            assert_eq!(function.loops.len(), 1);
            assert_eq!(function.loops[0].addresses.start, CODE);
            assert_eq!(function.loops[0].instructions.total(), 5);
        },
    );
}

#[test]
fn counts_bytes_that_are_no_instructions() {
    let mut code = assemble(|a| a.mov(rax, rbx));
    code.extend([0x06, 0x07, 0xc3]);
    let scan = scan(&Library::whole(code).bytes()).expect("a sound file");
    assert_eq!(scan.functions[0].undecodable_bytes, 2);
    assert_eq!(scan.totals.undecodable_bytes, 2);
    assert_eq!(scan.functions[0].instructions.total(), 2);
}

#[test]
fn asks_for_the_level_that_the_model_gives_its_heaviest_class() {
    let text = include_str!("../../../../models/xeon-gold-6130.toml");
    let model = Model::parse(Path::new("xeon-gold-6130.toml"), text).expect("a model of ours");
    let bytes = |write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        Library::whole(assemble(write)).bytes()
    };
    let heavy = scan(&bytes(|a| a.vmulpd(zmm0, zmm1, zmm2))).expect("a sound file");
    let scalar = scan(&bytes(|a| a.mov(rax, rbx))).expect("a sound file");
    let level = |scan: &dimmer_scan::Scan| {
        scan.levels(&model).map(|(_, level)| level.index()).collect::<Vec<_>>()
    };
    assert_eq!((level(&scalar), level(&heavy)), (vec![0], vec![2]));
}
