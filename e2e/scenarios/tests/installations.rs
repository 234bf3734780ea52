//! Installations with the rights that `config/` gives them: two in one cluster, their end, and what their tokens are good for.
//! And one whose etcd is set back. Each test has a control plane of its own.

use nodewright_e2e_lab::{
    control_plane::testing::{Failure, TestResult},
    devcluster::{
        etcd_restore,
        installation::{attacks, node_account},
    },
};

fn evaluated(measured: Result<String, String>) -> TestResult {
    measured.map(|text| println!("{text}")).map_err(Failure::new)
}

#[tokio::test]
async fn what_machines_need_survives_naive_deletions() -> TestResult {
    evaluated(Box::pin(attacks::uninstall()).await)
}

#[tokio::test]
async fn two_overlays_are_two_installations() -> TestResult {
    evaluated(Box::pin(attacks::overlays()).await)
}

#[tokio::test]
async fn the_token_of_the_manager_makes_nobody_more_powerful() -> TestResult {
    evaluated(Box::pin(attacks::token_secrets()).await)
}

#[tokio::test]
async fn the_node_of_a_lost_machine_goes_under_an_account_of_its_own() -> TestResult {
    evaluated(Box::pin(node_account::lost_node()).await)
}

#[tokio::test]
async fn a_fleet_follows_its_deployment_after_etcd_was_set_back() -> TestResult {
    evaluated(Box::pin(etcd_restore::attack()).await)
}
