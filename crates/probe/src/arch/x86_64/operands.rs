//! Operands of bursts: a page of numbers, and the shape of AMX tiles.

/// Offset of the tile configuration in the page (bytes).
pub(crate) const TILE_CONFIG: usize = 2048;

/// The operands of one measuring thread.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct OperandPage {
    numbers: [f64; TILE_CONFIG / 8],
    tiles: [u8; 64],
}

const _: () = assert!(std::mem::offset_of!(OperandPage, tiles) == TILE_CONFIG);

impl OperandPage {
    /// Numbers with random mantissas between 0.5 and 1, so that repeated multiply-adds stay
    /// finite and normal: x = x * a + a tends to a / (1 - a). Always the same numbers.
    pub(crate) fn new() -> Box<Self> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // xorshift64 (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Exponent of [0.5, 1), random mantissa.
            f64::from_bits(0x3fe0_0000_0000_0000 | (state >> 12))
        };
        let numbers = std::array::from_fn(|_| next());
        Box::new(Self { numbers, tiles: tile_config() })
    }

    /// The address that routines expect in `r15`.
    pub(crate) const fn as_ptr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// Palette 1; all eight tiles have 16 rows of 64 bytes (Intel SDM volume 1, table 18-1).
fn tile_config() -> [u8; 64] {
    let mut config = [0; 64];
    config[0] = 1;
    for tile in 0..8 {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    config
}
