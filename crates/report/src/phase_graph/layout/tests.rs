//! What no layout of any graph does: overlap, or lose an edge.

use super::*;

const BOX: Extent = Extent { left: 50.0, right: 50.0, height: 40.0 };
const LABEL: Extent = Extent { left: 8.0, right: 90.0, height: 30.0 };

fn edges(pairs: &[(usize, usize)]) -> Vec<Edge> {
    pairs.iter().map(|(start, end)| Edge { start: *start, end: *end, label: LABEL }).collect()
}

/// Left, top, right, bottom.
type Room = (f64, f64, f64, f64);

fn rooms(layout: &Layout) -> Vec<Room> {
    let room = |extent: Extent, x: f64, top: f64| {
        (x - extent.left, top, x + extent.right, top + extent.height)
    };
    let boxes = layout.boxes.iter().map(|(x, top)| room(BOX, *x, *top));
    let label = |route: &Route| room(LABEL, route.label.0, route.label.1 - LABEL.height / 2.0);
    boxes.chain(layout.routes.iter().map(label)).collect()
}

#[track_caller]
fn check(boxes: usize, pairs: &[(usize, usize)]) -> Layout {
    let layout = place(&vec![BOX; boxes], &edges(pairs));
    let rooms = rooms(&layout);
    for (index, a) in rooms.iter().enumerate() {
        assert!(a.0 >= -1e-6 && a.2 <= layout.width + 1e-6 && a.3 <= layout.height + 1e-6);
        for b in &rooms[..index] {
            let is_apart = a.2 <= b.0 || b.2 <= a.0 || a.3 <= b.1 || b.3 <= a.1;
            assert!(is_apart, "{a:?} and {b:?} overlap: {pairs:?}");
        }
    }
    for (route, (start, end)) in layout.routes.iter().zip(pairs) {
        let (upper, lower) = if route.is_upwards { (*end, *start) } else { (*start, *end) };
        let (first, last) = (route.stretches[0], route.stretches[route.stretches.len() - 1]);
        assert_eq!(first.1, layout.boxes[upper].1 + BOX.height);
        assert_eq!(last.2, layout.boxes[lower].1);
        assert!((first.0 - layout.boxes[upper].0).abs() < BOX.left);
        assert!(route.stretches.is_sorted_by(|a, b| a.2 <= b.1));
    }
    layout
}

#[test]
fn each_box_is_below_those_with_edges_to_it() {
    let layout = check(4, &[(0, 1), (1, 2), (0, 2), (0, 3)]);
    let tops: Vec<f64> = layout.boxes.iter().map(|one| one.1).collect();
    assert!(tops[0] < tops[1] && tops[1] < tops[2] && tops[1] == tops[3], "{tops:?}");
    assert!(layout.routes.iter().all(|route| !route.is_upwards));
}

#[test]
fn one_edge_of_a_cycle_goes_upwards() {
    let layout = check(3, &[(0, 1), (1, 2), (2, 0)]);
    let upwards: Vec<bool> = layout.routes.iter().map(|route| route.is_upwards).collect();
    assert_eq!(upwards, [false, false, true]);
    check(2, &[(0, 1), (1, 0)]);
}

#[test]
fn a_row_of_edges_is_straight() {
    let layout = check(3, &[(0, 1), (1, 2)]);
    assert!(layout.boxes.iter().all(|one| (one.0 - layout.boxes[0].0).abs() < 1e-6));
}

#[test]
fn a_tree_is_drawn_without_crossings() {
    let layout = check(7, &[(0, 2), (0, 1), (1, 3), (2, 4), (1, 5), (2, 6)]);
    let x = |at: usize| layout.boxes[at].0;
    assert_eq!(x(1) < x(2), x(3).max(x(5)) < x(4).min(x(6)));
}

#[test]
fn parts_without_edges_between_them_are_side_by_side() {
    let layout = check(5, &[(0, 3), (4, 1), (1, 2)]);
    let x: Vec<f64> = layout.boxes.iter().map(|one| one.0).collect();
    assert!(x[0].max(x[3]) < x[1].min(x[2]).min(x[4]), "{x:?}");
}

#[test]
fn nothing_is_placed_where_there_is_nothing() {
    let layout = check(0, &[]);
    assert_eq!((layout.width, layout.height), (0.0, 0.0));
    assert_eq!(check(1, &[]).boxes, [(50.0, 0.0)]);
}

#[test]
fn any_graph_is_placed_without_overlaps() {
    let mut seed = 1_u64;
    let mut below = |end: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % end
    };
    for _ in 0..200 {
        let boxes = 2 + below(20);
        let mut pairs: Vec<(usize, usize)> =
            (0..below(40)).map(|_| (below(boxes), below(boxes))).collect();
        pairs.retain(|(start, end)| start != end);
        pairs.sort_unstable();
        pairs.dedup();
        check(boxes, &pairs);
    }
}

#[test]
fn long_rows_with_edges_over_all_of_them_are_placed() {
    let rows = (0..100).map(|at| (at, at + 1)).chain((2..100).map(|at| (0, at)));
    check(101, &rows.collect::<Vec<_>>());
}
