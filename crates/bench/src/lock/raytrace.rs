//! A small ray tracer, whose threads compete for one lock as those of SPLASH-2's `raytrace` do:
//! they take tiles from a queue, number their rays, and count what they have found, each under the
//! lock.
//!
//! Paper 002, section 5.4, delegates the critical sections of SPLASH-2 programs. The picture here
//! is small, and its scene made up: it shows what a lock costs in such a program, not how fast that
//! program is. The threads' sections write a counter or a bin; between two of them, a thread
//! computes some 100 ns. Every picture is compared with that of a single thread without a lock.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_processor::units::CpuId;

use super::undisturbed::{Measurement, least_disturbed, rest, waited};
use super::{Lock, LockError, Measure, Place, Work, join};

/// Pixels in a row of the picture, and rows.
const SIDE: u32 = 128;
/// Pixels in a row of a tile, and rows.
const TILE: u32 = 8;
const TILES_IN_A_ROW: u32 = SIDE / TILE;
const TILES: u32 = TILES_IN_A_ROW * TILES_IN_A_ROW;
const SPHERES: usize = 12;
/// Levels of brightness.
const LEVELS: usize = 64;

/// What the threads share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    next_tile: u32,
    rays: u64,
    /// The pixels of each brightness.
    levels: [u32; LEVELS],
}

impl Default for Shared {
    fn default() -> Self {
        Self { next_tile: 0, rays: 0, levels: [0; LEVELS] }
    }
}

/// A critical section.
#[derive(Clone, Copy)]
pub(super) enum Section {
    /// Returns the next tile.
    TakeTile,
    /// Returns the number of the next ray.
    NumberRay,
    /// Counts a pixel of this brightness.
    Count(u8),
    /// Returns a digest of everything.
    Digest,
    /// Forgets everything, before a picture.
    Clear,
}

impl Section {
    #[inline(always)]
    pub(super) fn run(self, shared: &mut Shared) -> u64 {
        match self {
            Self::TakeTile => {
                shared.next_tile += 1;
                u64::from(shared.next_tile - 1)
            }
            Self::NumberRay => {
                shared.rays += 1;
                shared.rays
            }
            Self::Count(level) => {
                shared.levels[usize::from(level) % LEVELS] += 1;
                0
            }
            Self::Digest => {
                let bins = shared.levels.iter().map(|pixels| u64::from(*pixels));
                bins.fold(shared.rays, |digest, bin| digest.wrapping_mul(1_000_003) ^ bin)
            }
            Self::Clear => {
                *shared = Shared::default();
                0
            }
        }
    }
}

type Vector = [f64; 3];

fn plus(a: Vector, b: Vector) -> Vector {
    std::array::from_fn(|axis| a[axis] + b[axis])
}

fn times(a: Vector, factor: f64) -> Vector {
    a.map(|own| own * factor)
}

fn dot(a: Vector, b: Vector) -> f64 {
    a.iter().zip(b).map(|(own, other)| own * other).sum()
}

fn unit(a: Vector) -> Vector {
    times(a, 1.0 / dot(a, a).sqrt())
}

/// Spheres and a light.
#[derive(Debug)]
pub(super) struct Scene {
    /// The centre and the radius of each.
    spheres: [(Vector, f64); SPHERES],
    to_light: Vector,
}

impl Scene {
    /// The same spheres each time.
    pub(super) fn new() -> Self {
        let mut seed = 1_u32;
        let mut number = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(seed >> 8) / f64::from(1 << 24)
        };
        let sphere = |_| {
            let centre = [3.0 * number() - 1.5, 3.0 * number() - 1.5, 3.0 + 2.0 * number()];
            (centre, 0.2 + 0.5 * number())
        };
        Self { spheres: std::array::from_fn(sphere), to_light: unit([1.0, 1.0, -1.0]) }
    }

    /// The sphere that a ray meets first, and how far away.
    fn meet(&self, from: Vector, direction: Vector) -> Option<(usize, f64)> {
        let distance = |(centre, radius): &(Vector, f64)| {
            let to = plus(*centre, times(from, -1.0));
            let along = dot(to, direction);
            let squared = along * along - dot(to, to) + radius * radius;
            let near = along - squared.max(0.0).sqrt();
            (squared > 0.0 && near > 1e-6).then_some(near)
        };
        let met = self.spheres.iter().enumerate();
        met.filter_map(|(index, sphere)| Some((index, distance(sphere)?)))
            .min_by(|(_, first), (_, second)| first.total_cmp(second))
    }

    /// The brightness of a pixel. Calls `number_ray` for each ray.
    fn shade(&self, pixel: u32, row: u32, mut number_ray: impl FnMut()) -> u8 {
        let at = |place: u32| 2.0 * f64::from(place) / f64::from(SIDE) - 1.0;
        let direction = unit([at(pixel), at(row), 2.0]);
        number_ray();
        let Some((index, distance)) = self.meet([0.0; 3], direction) else { return 0 };
        let point = times(direction, distance);
        let (centre, radius) = self.spheres[index];
        let normal = times(plus(point, times(centre, -1.0)), 1.0 / radius);
        let light = dot(normal, self.to_light);
        if light <= 0.0 {
            return 1;
        }
        number_ray();
        if self.meet(point, self.to_light).is_some() {
            return 2;
        }
        // From 3 to 63.
        let level = 3.0 + 60.0 * light.min(1.0);
        (0..64_u8).take_while(|number| f64::from(*number) <= level).last().unwrap_or(0)
    }

    /// Takes tiles until there are none, and counts their pixels.
    fn draw(&self, section: impl Fn(Section) -> u64) {
        loop {
            let tile = section(Section::TakeTile);
            let Some(tile) = u32::try_from(tile).ok().filter(|tile| *tile < TILES) else { return };
            let (left, top) = (tile % TILES_IN_A_ROW * TILE, tile / TILES_IN_A_ROW * TILE);
            for place in 0..TILE * TILE {
                let (pixel, row) = (left + place % TILE, top + place / TILE);
                let number_ray = || {
                    section(Section::NumberRay);
                };
                section(Section::Count(self.shade(pixel, row, number_ray)));
            }
        }
    }

    /// The digest of the picture that one thread draws without a lock.
    pub(super) fn digest(&self) -> u64 {
        let shared = std::cell::RefCell::new(Shared::default());
        self.draw(|section| section.run(&mut shared.borrow_mut()));
        Section::Digest.run(&mut shared.borrow_mut())
    }
}

/// Threads that draw one picture.
pub(super) struct Draw<'a> {
    pub(super) scene: &'a Scene,
    pub(super) place: Place<'a>,
    pub(super) threads: u32,
    pub(super) lock: Lock,
    /// That of the right picture.
    pub(super) digest: u64,
}

impl Measure for Draw<'_> {
    /// From the first thread's start to the last one's end (ms).
    type Result = Result<f64, LockError>;
    fn measure(self, section: impl Fn(Work) -> u64 + Sync) -> Self::Result {
        let section = |own| section(Work::Trace(own));
        let draw = || {
            section(Section::Clear);
            self.draw(&section)
        };
        least_disturbed(self.place, self.threads, draw)
    }
}

impl Draw<'_> {
    fn draw(
        &self,
        section: &(impl Fn(Section) -> u64 + Sync),
    ) -> Result<Measurement<f64>, LockError> {
        let Self { scene, place, threads, lock, digest } = *self;
        let ready = Barrier::new(threads as usize);
        let draw = |cpu: CpuId| {
            let pinned = affinity::pin(place.root, cpu);
            ready.wait();
            let before = waited();
            rest();
            let begin = Instant::now();
            scene.draw(section);
            let end = Instant::now();
            pinned.map(|_pinned| (begin, end, waited().saturating_sub(before)))
        };
        let times = std::thread::scope(|scope| {
            let cpus = place.cpus.iter().cycle().take(threads as usize);
            let handles: Vec<_> = cpus.map(|cpu| scope.spawn(|| draw(*cpu))).collect();
            handles.into_iter().map(join).collect::<Result<Vec<_>, AffinityError>>()
        })?;
        if section(Section::Digest) != digest {
            return Err(LockError::WrongPicture { lock, threads });
        }
        let begin = times.iter().map(|(begin, ..)| *begin).min();
        let end = times.iter().map(|(_, end, _)| *end).max();
        let lasted = begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end - begin);
        let waited = times.iter().map(|(.., waited)| *waited).sum();
        Ok(Measurement { value: 1e3 * lasted.as_secs_f64(), lasted, waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_background_shadow_and_light() {
        let (scene, shared) = (Scene::new(), std::cell::RefCell::new(Shared::default()));
        scene.draw(|section| section.run(&mut shared.borrow_mut()));
        let Shared { rays, levels, .. } = shared.into_inner();
        assert_eq!(levels.iter().sum::<u32>(), SIDE * SIDE);
        let pixels = u64::from(SIDE * SIDE);
        assert!((pixels + 1..2 * pixels).contains(&rays), "{rays}");
        assert!(levels[..3].iter().all(|pixels| *pixels > 0), "{levels:?}");
        assert!(levels[3..].iter().filter(|pixels| **pixels > 0).count() > 20, "{levels:?}");
    }

    #[test]
    fn a_lost_count_changes_the_digest() {
        let mut shared = Shared { rays: 7, ..Shared::default() };
        let before = Section::Digest.run(&mut shared);
        Section::Count(5).run(&mut shared);
        let counted = Section::Digest.run(&mut shared);
        Section::NumberRay.run(&mut shared);
        let numbered = Section::Digest.run(&mut shared);
        assert!(before != counted && counted != numbered && before != numbered);
    }
}
