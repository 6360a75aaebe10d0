//! What a thread knows of the marks that it has passed, found by the addresses of their texts.

use crate::names::Key;

/// Number of places. A guess: the paper's MySQL has seven marks.
const PLACES: usize = 256;
/// The bits of a hash that select the place.
const SHIFT: u32 = usize::BITS - PLACES.trailing_zeros();

/// A table in which each key has one place; a later key takes the place of an earlier one.
#[derive(Debug)]
pub(crate) struct Cache<T>(Box<[Option<(Key, T)>]>);

impl<T: Copy> Cache<T> {
    pub(crate) fn new() -> Self {
        Self(vec![None; PLACES].into())
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<T> {
        let (kept, value) = (*self.0.get(place(key))?)?;
        (kept == key).then_some(value)
    }

    pub(crate) fn insert(&mut self, key: Key, value: T) {
        if let Some(entry) = self.0.get_mut(place(key)) {
            *entry = Some((key, value));
        }
    }
}

/// The multiplier is the golden ratio's (Knuth, The Art of Computer Programming, vol. 3, 6.4).
#[inline]
fn place([function, position]: Key) -> usize {
    let mixed = function.rotate_left(20) ^ position;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_share_a_place_are_not_confused() {
        let mut cache = Cache::new();
        for number in 0..10_000_usize {
            let key = [number * 64, number * 24];
            assert_eq!(cache.get(key), None);
            cache.insert(key, number);
            assert_eq!(cache.get(key), Some(number));
            assert_eq!(cache.get([key[0], key[1] + 1]), None);
        }
    }
}
