//! Generates the table of what a scan uses of each instruction: its class, and its effect on the
//! flow of control.
//!
//! "Heavy" and "light" have the meaning of `dimmer_processor::class`. This file decides which
//! mnemonics are heavy.

use std::fmt::Write as _;
use std::path::Path;

use iced_x86::{Code, EncodingKind, FlowControl, Mnemonic, OpCodeInfo};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut table = "[\n".to_owned();
    for code in Code::values() {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{},", traits(code));
    }
    table.push(']');
    let Some(directory) = std::env::var_os("OUT_DIR") else { return };
    let file = Path::new(&directory).join("traits.rs");
    if let Err(error) = std::fs::write(&file, table) {
        println!("cargo::error=cannot write {}: {error}", file.display());
    }
}

/// An instruction's traits, as source text for `classify`.
fn traits(code: Code) -> String {
    const NARROW: [&str; 3] = ["Scalar", "Light128", "Heavy128"];
    let form = code.op_code();
    let mnemonic = code.mnemonic();
    let class = class_of(form, mnemonic);
    let reads_only = matches!(mnemonic, Mnemonic::Vptest | Mnemonic::Vtestps | Mnemonic::Vtestpd);
    let evex = form.encoding() == EncodingKind::EVEX;
    let writes_upper =
        !reads_only && class.is_some_and(|class| !NARROW.contains(&class) && class != "Tile");
    let class = match class {
        Some(class) => format!("Some(InstructionClass::{class})"),
        None => "None".to_owned(),
    };
    format!("traits({class}, {evex}, {writes_upper}, Kind::{})", kind_of(code, mnemonic))
}

fn kind_of(code: Code, mnemonic: Mnemonic) -> &'static str {
    match mnemonic {
        Mnemonic::INVALID => return "Invalid",
        Mnemonic::Nop | Mnemonic::Int3 => return "Padding",
        Mnemonic::Lea => return "Address",
        Mnemonic::Vzeroupper | Mnemonic::Vzeroall => return "ClearUpper",
        _ => {}
    }
    match code.flow_control() {
        FlowControl::UnconditionalBranch if code.is_jmp_short_or_near() => "Jump",
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => "IndirectJump",
        FlowControl::ConditionalBranch => "Branch",
        FlowControl::Call if code.is_call_near() => "Call",
        FlowControl::Return => "Return",
        FlowControl::Exception => "Stop",
        _ => "Plain",
    }
}

/// The width of the registers that an instruction form names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    Mmx,
    Xmm,
    Ymm,
    Zmm,
    Tile,
}

fn class_of(form: &OpCodeInfo, mnemonic: Mnemonic) -> Option<&'static str> {
    if matches!(mnemonic, Mnemonic::Ldtilecfg | Mnemonic::Sttilecfg | Mnemonic::Tilerelease) {
        return Some("Tile");
    }
    let width = (0..form.op_count()).filter_map(|index| width_of_operand(form, index)).max()?;
    let name = format!("{mnemonic:?}").to_ascii_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    if width < Width::Tile && is_one_element(name) {
        return Some("Scalar");
    }
    Some(match (width, is_heavy(name)) {
        (Width::Mmx, _) => "Scalar",
        (Width::Xmm, false) => "Light128",
        (Width::Xmm, true) => "Heavy128",
        (Width::Ymm, false) => "Light256",
        (Width::Ymm, true) => "Heavy256",
        (Width::Zmm, false) => "Light512",
        (Width::Zmm, true) => "Heavy512",
        (Width::Tile, _) => "Tile",
    })
}

/// Takes the width from the decoder crate's name for the kind of operand: `ymm_or_mem`,
/// `mem_vsib64z`.
fn width_of_operand(form: &OpCodeInfo, index: u32) -> Option<Width> {
    let kind = format!("{:?}", form.op_kind(index));
    let vector_index = kind.starts_with("mem_vsib").then(|| kind.chars().last()).flatten();
    if kind.starts_with("tmm") {
        Some(Width::Tile)
    } else if kind.starts_with("zmm") || vector_index == Some('z') {
        Some(Width::Zmm)
    } else if kind.starts_with("ymm") || vector_index == Some('y') {
        Some(Width::Ymm)
    } else if kind.starts_with("xmm") || vector_index == Some('x') {
        Some(Width::Xmm)
    } else {
        kind.starts_with("mm_").then_some(Width::Mmx)
    }
}

/// Whether the instruction (name without the leading `v`) works on or moves only one element.
fn is_one_element(name: &str) -> bool {
    const MOVES: [&str; 10] = [
        "movd",
        "movq",
        "movw",
        "movq2dq",
        "movdq2q",
        "pextrb",
        "pextrw",
        "pextrd",
        "pextrq",
        "extractps",
    ];
    if MOVES.contains(&name) {
        return true;
    }
    // Names for integer vectors of signed doublewords end like scalar ones: `pabsd`, `pdpwssd`,
    // `pcompressd`.
    if name.starts_with('p') || name.starts_with("broadcast") {
        return false;
    }
    ["ss", "sd", "sh", "2si", "2usi"].iter().any(|end| name.ends_with(end))
}

/// Whether the instruction (name without the leading `v`) is heavy: floating-point arithmetic,
/// which includes converting, comparing, rounding and approximating, or integer multiplication. Bit
/// tests (`testps`, `fpclassps`), carry-less products and Galois-field products are not heavy.
fn is_heavy(name: &str) -> bool {
    const FLOATING_POINT: [&str; 31] = [
        "add", "sub", "mul", "div", "sqrt", "rsqrt", "rcp", "max", "min", "cmp", "dpp", "dpbf16",
        "hadd", "hsub", "range", "reduce", "rndscale", "round", "scalef", "getexp", "getmant",
        "fixupimm", "cvt", "exp2", "fm", "fnm", "fcm", "4fm", "4fnm", "frcz", "bcstne",
    ];
    const INTEGER: [&str; 6] = ["pmul", "pmadd", "pdp", "p4dp", "pmac", "pmadc"];
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    // `pmultishift` works on bit fields, despite its name.
    !name.starts_with("pmultishift") && (begins(&FLOATING_POINT) || begins(&INTEGER))
}
