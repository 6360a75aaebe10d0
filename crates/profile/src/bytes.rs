//! Reads little-endian numbers from bytes that may end anywhere.

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'data>(pub(crate) &'data [u8]);

impl<'data> Bytes<'data> {
    /// The next bytes; `None` if there are fewer, and then nothing is taken.
    pub(crate) fn take(&mut self, number: usize) -> Option<&'data [u8]> {
        let (first, rest) = self.0.split_at_checked(number)?;
        self.0 = rest;
        Some(first)
    }

    /// Leaves out some numbers of 64 bits.
    pub(crate) fn skip(&mut self, numbers: u64) -> Option<()> {
        let bytes = usize::try_from(numbers).ok()?.checked_mul(8)?;
        self.take(bytes).map(|_| ())
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// The text up to the first zero byte, or up to the end.
    pub(crate) fn text(&self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}
