//! The horizontal coordinates of vertices whose order is known.

use super::Vertex;

/// How often the layers are gone through, and from when on the neighbors on both sides count. More
/// changes nothing that is seen.
const SWEEPS: usize = 80;
const BOTH_FROM: usize = 20;

/// Space between vertices of a layer.
const SPACE: f64 = 16.0;

/// How much more an edge is to be straight where it passes layers than where it meets a box.
const STRAIGHT: f64 = 8.0;

/// Gives each vertex the mean of its neighbors' coordinates, as far as the others of its layer
/// allow. The leftmost is at the left edge, which is 0.
pub(super) fn assign(vertices: &mut [Vertex], layers: &[Vec<usize>]) {
    for layer in layers {
        let wanted: Vec<(f64, f64)> = layer.iter().map(|_| (0.0, 1.0)).collect();
        set(vertices, layer, &wanted);
    }
    for sweep in 0..SWEEPS {
        for step in 0..layers.len() {
            let is_down = sweep % 2 == 0;
            let layer = &layers[if is_down { step } else { layers.len() - 1 - step }];
            let has_both = sweep >= BOTH_FROM;
            let (above, below) = (is_down || has_both, !is_down || has_both);
            let wanted: Vec<(f64, f64)> =
                layer.iter().map(|at| mean(vertices, *at, above, below)).collect();
            set(vertices, layer, &wanted);
        }
    }
    let left = vertices.iter().map(|one| one.x - one.extent.left).fold(f64::MAX, f64::min);
    vertices.iter_mut().for_each(|vertex| vertex.x -= left);
}

/// The mean coordinate of a vertex's neighbors above, below or both, and its weight.
fn mean(vertices: &[Vertex], at: usize, above: bool, below: bool) -> (f64, f64) {
    let vertex = &vertices[at];
    let (mut sum, mut all) = (0.0, 0.0);
    let neighbors = vertex.above.iter().filter(|_| above);
    for neighbor in neighbors.chain(vertex.below.iter().filter(|_| below)) {
        let neighbor = &vertices[*neighbor];
        let weight = if vertex.is_box || neighbor.is_box { 1.0 } else { STRAIGHT };
        sum += weight * neighbor.x;
        all += weight;
    }
    if all > 0.0 { (sum / all, all) } else { (vertex.x, 0.1) }
}

/// Sets the coordinates of a layer as near to the wanted ones as the order and the room that each
/// vertex takes allow: least squares with weights, by pooling neighbors that are too near (isotonic
/// regression).
fn set(vertices: &mut [Vertex], layer: &[usize], wanted: &[(f64, f64)]) {
    // Without the room that the vertices take, the coordinates only have to ascend.
    let mut offsets = Vec::with_capacity(layer.len());
    let mut offset = 0.0;
    for (place, at) in layer.iter().enumerate() {
        if let Some(before) = place.checked_sub(1) {
            let before = &vertices[layer[before]].extent;
            offset += before.right + SPACE + vertices[*at].extent.left;
        }
        offsets.push(offset);
    }
    // The mean, the weight and the number of vertices of each pool.
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for ((want, weight), offset) in wanted.iter().zip(&offsets) {
        let mut pool = (want - offset, *weight, 1);
        while let Some((mean, weight, number)) = pools.pop_if(|before| before.0 > pool.0) {
            let sum = weight + pool.1;
            pool = ((mean * weight + pool.0 * pool.1) / sum, sum, number + pool.2);
        }
        pools.push(pool);
    }
    let means = pools.iter().flat_map(|(mean, _, number)| std::iter::repeat_n(*mean, *number));
    for ((at, mean), offset) in layer.iter().zip(means).zip(offsets) {
        vertices[*at].x = mean + offset;
    }
}
