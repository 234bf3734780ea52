//! The end-to-end scenarios: Nodewright as users see it, on a real control plane. See `nodewright_e2e_scenarios`.

mod autoscaler;
mod birth;
mod claims;
mod cloud_faults;
mod crashes;
mod drain;
mod errors;
mod health;
mod kwok;
mod leaders;
mod metrics;
mod outages;
mod planes;
mod played;
mod poison;
mod removal;
mod restore;
mod rollout;
mod scale;
mod schemas;
mod secrets;
mod selfhealing;
mod traces;
mod unreadable;
mod webhooks;
mod writes;
