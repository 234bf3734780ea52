//! Modules that import one another.

use std::collections::{BTreeMap, BTreeSet};

use crate::Module;

/// The groups of modules that import one another in a circle, each in order. That a module and those that it contains import
/// one another is no circle.
pub fn circles(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        graph.keys().map(|module| (module, reachable(graph, module))).collect();
    let mut groups = BTreeSet::new();
    for (module, others) in &reached {
        let mut group: Vec<Module> = others
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(*module)))
            .map(|other| (*other).clone())
            .collect();
        group.sort();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    groups.into_iter().collect()
}

/// All that a module imports, itself or by others.
fn reachable<'g>(graph: &'g BTreeMap<Module, BTreeSet<Module>>, start: &'g Module) -> BTreeSet<&'g Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(module) = open.pop() {
        let contains = |other: &Module| other.starts_with(module) || module.starts_with(other);
        for other in graph.get(module).into_iter().flatten().filter(|other| !contains(other)) {
            if reached.insert(other) {
                open.push(other);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        path.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn a_circle_is_found_and_a_parent_is_none() {
        let mut graph = BTreeMap::new();
        let mut edge =
            |from: &str, to: &str| graph.entry(module(from)).or_insert_with(BTreeSet::new).insert(module(to));
        edge("a", "a::b");
        edge("a::b", "a");
        edge("a::b", "c");
        edge("c", "d");
        edge("d", "e");
        edge("e", "d::f");
        assert_eq!(circles(&graph), Vec::<Vec<Module>>::new());
        graph.entry(module("e")).or_default().insert(module("c"));
        assert_eq!(circles(&graph), [[module("c"), module("d"), module("e")]]);
    }
}
