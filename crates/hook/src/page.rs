//! Addresses and pages of code.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// The start of the page of an address.
pub(crate) const fn page(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Converts an address. This machine's addresses have 64 bits.
pub(crate) fn address(of: u64) -> usize {
    usize::try_from(of).unwrap_or_default()
}
