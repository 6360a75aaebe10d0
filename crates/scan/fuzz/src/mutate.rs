//! Damage to a file.

use std::ops::Range;

use fastrand::Rng;

use crate::layout::Layout;

/// The least code that reaches every part of the analysis. `code` adds distances after the jumps.
const CODE: [&[u8]; 24] = [
    // vpxor ymm, vpxord zmm, vfmadd zmm, movaps, tdpbssd, vzeroupper.
    &[0xc5, 0xfd, 0xef, 0xc0],
    &[0x62, 0xf1, 0x7d, 0x48, 0xef, 0xc0],
    &[0x62, 0xf2, 0xfd, 0x48, 0xb8, 0xc1],
    &[0x0f, 0x28, 0xc1],
    &[0xc4, 0xe2, 0x73, 0x5e, 0xc2],
    &[0xc5, 0xf8, 0x77],
    // vpgatherdd zmm, with a mask, and the first bytes of VEX, EVEX, XOP and REX2.
    &[0x62, 0xf2, 0x7d, 0x49, 0x90, 0x04, 0x08],
    &[0xc4, 0xe2, 0x7d],
    &[0x62, 0xf1, 0xfd, 0x48],
    &[0x8f, 0xe8],
    &[0xd5],
    // ret, ret imm16, ud2, int3, nop, a long nop, jmp rax, lock.
    &[0xc3],
    &[0xc2, 0x08, 0x00],
    &[0x0f, 0x0b],
    &[0xcc],
    &[0x90],
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0xff, 0xe0],
    &[0xf0],
    // jmp and jne near, call, lea from rip; jmp short, loop.
    &[0xe9],
    &[0x0f, 0x85],
    &[0xe8],
    &[0x48, 0x8d, 0x05],
    &[0xeb],
];

/// Damages `bytes`; `other` is a file to take parts from.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let mut layout = Layout::of(bytes);
    // Mostly a few at once: a file with much damage is refused early.
    let most = 1 << rng.u32(0..6);
    for _ in 0..rng.u32(1..=most) {
        if bytes.is_empty() {
            return;
        }
        let range = place(rng, bytes.len(), &layout);
        match rng.u32(0..100) {
            0..15 => bytes[range.start] ^= 1 << rng.u32(0..8),
            15..25 => bytes[range.start] = rng.u8(..),
            25..50 => number(rng, bytes, range.start, &layout.values),
            50..58 => add(rng, bytes, range.start),
            58..64 => copy(rng, bytes, range),
            64..70 => splice(rng, bytes, range, other),
            70..72 => {
                let value = *rng.choice(&[0x00, 0xff, 0x80, 0x7f, 0x90]).unwrap_or(&0);
                bytes[range].fill(value);
            }
            72..98 => code(rng, bytes, &layout),
            // Files without their section headers are refused, and these tend to be last.
            98 => bytes.truncate(range.start),
            _ => {
                let length = bytes.len() + rng.usize(0..4096);
                bytes.resize(length, rng.u8(..));
            }
        }
        if rng.u32(0..8) == 0 {
            layout = Layout::of(bytes);
        }
    }
}

/// Chooses some bytes, mostly an entry of a table or a field of one.
fn place(rng: &mut Rng, length: usize, layout: &Layout) -> Range<usize> {
    let table = rng.choice(&layout.tables).filter(|table| table.range.end <= length);
    let Some(table) = table.filter(|_| rng.u32(0..10) > 0) else {
        let start = rng.usize(0..length);
        return start..length.min(start + rng.usize(1..=64));
    };
    let entry = rng.usize(0..table.range.len().div_ceil(table.entry));
    let start = table.range.start + entry * table.entry;
    let end = table.range.end.min(start + table.entry);
    if table.entry > 4 && rng.bool() {
        return start..end;
    }
    // Fields have 4 or 8 bytes.
    let field = start + rng.usize(0..=(end - start - 1) / 4) * 4;
    field..end.min(field + 8)
}

/// Writes a number that often breaks arithmetic.
fn number(rng: &mut Rng, bytes: &mut [u8], at: usize, values: &[u64]) {
    let near = match rng.u32(0..6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.u32(0..64),
        3 => bytes.len() as u64,
        4 => rng.u64(..) >> rng.u32(0..64),
        _ => *rng.choice(values).unwrap_or(&0),
    };
    let value = match rng.u32(0..4) {
        0 => near.wrapping_neg(),
        1 => near.wrapping_add(rng.u64(0..32)).wrapping_sub(16),
        _ => near,
    };
    let width = if rng.bool() { 8 } else { 4 };
    write(bytes, at, &value.to_le_bytes()[..width]);
}

/// Changes a 32-bit number a little.
fn add(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    if let Some(field) = bytes.get(at..at + 4).and_then(|field| field.try_into().ok()) {
        let value = u32::from_le_bytes(field).wrapping_add(rng.u32(0..64)).wrapping_sub(32);
        write(bytes, at, &value.to_le_bytes());
    }
}

/// Copies what lies in `range` a multiple of its length further, which in a table is another entry,
/// or sometimes to any place.
fn copy(rng: &mut Rng, bytes: &mut [u8], range: Range<usize>) {
    let length = range.len();
    let room = (bytes.len() - range.start) / length;
    let to = range.start + rng.usize(0..room.clamp(1, 32)) * length;
    let to = if rng.u32(0..4) == 0 { rng.usize(0..bytes.len()) } else { to };
    let from = bytes[range].to_vec();
    write(bytes, to, &from);
}

/// Overwrites what lies in `range`, and perhaps more, with bytes of `other`, from the same place or
/// any other.
fn splice(rng: &mut Rng, bytes: &mut [u8], range: Range<usize>, other: &[u8]) {
    let from = if rng.bool() { range.start } else { rng.usize(0..=other.len()) };
    let length = if rng.bool() { range.len() } else { rng.usize(1..1024) };
    let part = other.get(from..).unwrap_or_default();
    write(bytes, range.start, &part[..length.min(part.len())]);
}

/// Overwrites some code with other code.
fn code(rng: &mut Rng, bytes: &mut [u8], layout: &Layout) {
    let Some(part) = rng.choice(&layout.code).filter(|part| part.range.end <= bytes.len()) else {
        return;
    };
    let mut at = rng.usize(part.range.clone());
    if rng.bool() {
        at &= !15;
    }
    for _ in 0..rng.u32(1..24) {
        let instruction = *rng.choice(&CODE).unwrap_or(&&[][..]);
        // Only pieces that need a distance or operands after them end like this.
        let more = match instruction {
            [0xe9 | 0xe8] | [0x0f, 0x85] | [.., 0x8d, 0x05] => {
                let distance = rng.i32(-256..256) << rng.u32(0..12);
                distance.to_le_bytes().to_vec()
            }
            [0xeb] => vec![rng.u8(..)],
            [0xc4, ..] | [0x62, 0xf1, 0xfd, _] | [0x8f, _] | [0xd5] => {
                (0..rng.u32(1..6)).map(|_| rng.u8(..)).collect()
            }
            _ => Vec::new(),
        };
        for piece in [instruction, &more] {
            write(bytes, at, piece);
            at += piece.len();
        }
    }
}

/// Writes as much of `new` as the file has room for.
fn write(bytes: &mut [u8], at: usize, new: &[u8]) {
    let rest = bytes.get_mut(at..).unwrap_or_default();
    let length = rest.len().min(new.len());
    rest[..length].copy_from_slice(&new[..length]);
}
