//! The gauges of objects, which are written at each scrape.

use std::{fmt, sync::Arc};

use nodewright_api::MachineSummary;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::Stores,
    object::{Kind, created, name, namespace},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::shared::CONTROL;

/// A label.
pub(crate) type Label<'a> = (&'static str, &'a str);

/// The help of a family that machine-controller-manager has, too.
pub(crate) const HELP: &str = "As in machine-controller-manager";

/// Writes one series of an object: labels beside its name and namespace, and the value.
type Write<'a> = dyn FnMut(&[Label<'_>], i64) -> fmt::Result + 'a;

/// A number of an object. `None`: the object has no series.
pub(crate) type Number<K> = fn(&K) -> Option<i64>;

/// Registers the families of a kind: their number, and what `write` writes. All their names begin with the prefix.
pub(crate) fn register_objects<K: Kind>(
    metrics: &Metrics,
    stores: Stores,
    prefix: &'static str,
    write: fn(&mut Scrape<'_, '_, K>) -> fmt::Result,
) {
    metrics.register(|registry| registry.register_collector(Box::new(Objects { stores, prefix, write })));
}

struct Objects<K> {
    stores: Stores,
    prefix: &'static str,
    write: fn(&mut Scrape<'_, '_, K>) -> fmt::Result,
}

impl<K> fmt::Debug for Objects<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&self.prefix).finish()
    }
}

impl<K: Kind> Collector for Objects<K> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let objects = self.stores.of::<K>(CONTROL).all();
        let (name, count) = (format!("{}_items_total", self.prefix), i64::try_from(objects.len()).unwrap_or(i64::MAX));
        ConstGauge::new(count).encode(encoder.encode_descriptor(&name, HELP, None, MetricType::Gauge)?)?;
        (self.write)(&mut Scrape { encoder: &mut encoder, prefix: self.prefix, objects })
    }
}

/// The objects of a kind at a scrape.
pub(crate) struct Scrape<'a, 'e, K> {
    encoder: &'a mut DescriptorEncoder<'e>,
    prefix: &'static str,
    objects: Vec<Arc<K>>,
}

impl<K: Kind> Scrape<'_, '_, K> {
    /// Writes a family: of each object as many series as `series` writes.
    pub(crate) fn gauges(&mut self, family: &str, series: impl Fn(&K, &mut Write<'_>) -> fmt::Result) -> fmt::Result {
        let family = format!("{}_{family}", self.prefix);
        let mut family = self.encoder.encode_descriptor(&family, HELP, None, MetricType::Gauge)?;
        self.objects.iter().map(AsRef::as_ref).try_for_each(|object: &K| {
            let own = [("name", name(object)), ("namespace", namespace(object))];
            series(object, &mut |more, value| ConstGauge::new(value).encode(family.encode_family(&(own, more))?))
        })
    }

    /// Writes families of one number of each object.
    pub(crate) fn numbers(&mut self, numbers: &[(&str, Number<K>)]) -> fmt::Result {
        numbers.iter().try_for_each(|(family, number)| {
            self.gauges(family, |object, write| number(object).map_or(Ok(()), |number| write(&[], number)))
        })
    }

    /// Writes the conditions of the objects: type and status.
    pub(crate) fn conditions(&mut self, of: fn(&K) -> Vec<(&str, &str)>) -> fmt::Result {
        self.gauges("status_condition", |object, write| {
            of(object).into_iter().try_for_each(|(kind, status)| write(&[("condition", kind)], of_status(status)))
        })
    }

    /// Writes the failed Machines that the statuses of the objects list.
    pub(crate) fn failed(&mut self, of: fn(&K) -> &[MachineSummary]) -> fmt::Result {
        self.gauges("failed_machines", |object, write| {
            of(object).iter().try_for_each(|failed| {
                let operation = &failed.last_operation;
                let labels = [
                    ("failed_machine_name", failed.name.as_str()),
                    ("failed_machine_provider_id", &failed.provider_id),
                    ("failed_machine_owner_ref", &failed.owner_ref),
                    ("failed_machine_last_operation_state", operation.state.as_str()),
                    ("failed_machine_last_operation_machine_operation_type", operation.operation_type.as_str()),
                ];
                write(&labels, 1)
            })
        })
    }
}

/// The value of a condition by its status.
fn of_status(status: &str) -> i64 {
    match status {
        "True" => 1,
        "Unknown" => 2,
        _ => 0,
    }
}

/// When an object was created, in seconds since 1970.
pub(crate) fn created_at(object: &impl Kind) -> String {
    created(object).unwrap_or_default().as_second().to_string()
}
