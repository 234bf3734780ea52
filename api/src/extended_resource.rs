//! Extended resources: those of Nodes that are not Kubernetes' own, such as `nvidia.com/gpu`.

/// Whether a resource is none of Kubernetes' own, such as `cpu`: the kubelet reports their amounts.
pub fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// The units of whole quantities.
const UNITS: [(&str, u128); 13] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

/// The number that a quantity stands for, if it is a whole one. Kubernetes demands that of extended resources.
pub fn whole(quantity: &str) -> Option<u128> {
    let digits = quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u128>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_whole_in_any_unit() {
        let table = [("5", Some(5)), ("2k", Some(2000)), ("1Ki", Some(1024)), ("1K", None), ("1ki", None), ("", None)];
        for (text, number) in table {
            assert_eq!(whole(text), number, "{text:?}");
        }
    }
}
