//! Topologies as data: nodes, switches, and the cables between them.
//!
//! Routes are not part of a topology. Every shortest path is a route, and a flow's hash selects one
//! of several (ECMP), so a flow's packets stay in order unless its cable fails.

use std::collections::VecDeque;

use super::link::LinkConfig;
use super::switch::SwitchConfig;

/// A machine, with one network card. Several hosts (threads with an endpoint each) may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A node.
    Node(NodeId),
    /// A switch, by its index.
    Switch(u32),
    /// A network without limits, which leads to every node.
    Core,
}

/// Two links, one for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cable {
    /// The ends.
    pub ends: [End; 2],
    /// The link of each direction.
    pub link: LinkConfig,
}

/// Nodes, switches and their cables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: &'static str,
    /// How many nodes there are; `None`: any number can be added.
    pub nodes: Option<u32>,
    /// The switches.
    pub switches: Vec<SwitchConfig>,
    /// The cables. A node has exactly one.
    pub cables: Vec<Cable>,
}

impl Default for Topology {
    fn default() -> Self {
        Self::mesh()
    }
}

/// 100 nodes in five racks as CloudLab handed them out: between 14 and 27 (eRPC, section 6.3).
const CX4_RACKS: [u32; 5] = [20, 27, 22, 17, 14];

impl Topology {
    /// Nodes that share nothing: each has a link of its own into a core without limits. With two
    /// nodes this is a cable between them.
    pub fn mesh() -> Self {
        Self {
            name: "mesh",
            nodes: None,
            switches: Vec::new(),
            cables: Vec::new(),
        }
    }

    /// All nodes at one switch.
    pub fn one_switch(nodes: u32, link: LinkConfig, switch: SwitchConfig) -> Self {
        Self::two_layers("one switch", &[nodes], link, 0, link, switch)
    }

    /// The paper's CX4 cluster (eRPC, NSDI'19, sections 2.1 and 3): 100 nodes at 25 Gb/s under
    /// five top-of-rack switches, each with five uplinks of 100 Gb/s to one spine; 40 downlinks
    /// for 5 uplinks are 2:1, and the fullest rack of the 100 nodes that took part has 1.35:1.
    /// Delays are chosen to give its round trips: 6 us from rack to rack, 3.7 us within one.
    pub fn cx4(switch: SwitchConfig) -> Self {
        Self::racks("CX4", &CX4_RACKS, switch)
    }

    /// The same with as many nodes as wanted: more of them are spread over the racks from the
    /// first one on, fewer are spread evenly.
    pub fn cx4_with(nodes: u32, switch: SwitchConfig) -> Self {
        let all: u32 = CX4_RACKS.iter().sum();
        let (racks, more) = if nodes >= all {
            (CX4_RACKS, nodes - all)
        } else {
            ([0; 5], nodes)
        };
        let mut rack = 0;
        let racks = racks.map(|nodes| {
            rack += 1;
            nodes + (more + 5 - rack) / 5
        });
        Self::racks("CX4", &racks, switch)
    }

    fn racks(name: &'static str, racks: &[u32], switch: SwitchConfig) -> Self {
        let down = LinkConfig {
            rate_bps: 25_000_000_000,
            // The cable, and the card and the bus behind it.
            propagation_ns: 600,
            // About as much as cards queue before they leave packets in their rings.
            queue_bytes: 64 << 10,
        };
        let up = LinkConfig {
            rate_bps: 100_000_000_000,
            propagation_ns: 150,
            queue_bytes: 0,
        };
        Self::two_layers(name, racks, down, 5, up, switch)
    }

    /// Racks of nodes under a switch each, with `uplinks` cables from each to one spine. Without
    /// uplinks there is no spine, and only one rack makes sense.
    fn two_layers(
        name: &'static str,
        racks: &[u32],
        down: LinkConfig,
        uplinks: u32,
        up: LinkConfig,
        switch: SwitchConfig,
    ) -> Self {
        let spine = End::Switch(racks.len() as u32);
        let mut cables = Vec::new();
        let mut node = 0;
        for (rack, &nodes) in racks.iter().enumerate() {
            let top = End::Switch(rack as u32);
            for _ in 0..nodes {
                let ends = [End::Node(NodeId(node)), top];
                cables.push(Cable { ends, link: down });
                node += 1;
            }
            for _ in 0..uplinks {
                let ends = [top, spine];
                cables.push(Cable { ends, link: up });
            }
        }
        let switches = racks.len() + usize::from(uplinks > 0);
        Self {
            name,
            nodes: Some(node),
            switches: vec![switch; switches],
            cables,
        }
    }

    /// A fat tree of switches with `ports` ports each (Al-Fares et al., SIGCOMM'08): `ports`
    /// pods, `ports`^3 / 4 nodes, full bisection bandwidth.
    ///
    /// # Panics
    /// If `ports` is not even.
    pub fn fat_tree(ports: u32, link: LinkConfig, switch: SwitchConfig) -> Self {
        assert!(
            ports >= 2 && ports.is_multiple_of(2),
            "a fat tree of {ports} ports"
        );
        let half = ports / 2;
        let (edges, cores) = (ports * half, half * half);
        let edge = |pod: u32, index: u32| End::Switch(pod * half + index);
        let aggregation = |pod: u32, index: u32| End::Switch(edges + pod * half + index);
        let core = |index: u32| End::Switch(2 * edges + index);
        let mut cables = Vec::new();
        let mut node = 0;
        for pod in 0..ports {
            for low in 0..half {
                for _ in 0..half {
                    let ends = [End::Node(NodeId(node)), edge(pod, low)];
                    cables.push(Cable { ends, link });
                    node += 1;
                }
                for high in 0..half {
                    let ends = [edge(pod, low), aggregation(pod, high)];
                    cables.push(Cable { ends, link });
                    let ends = [aggregation(pod, low), core(low * half + high)];
                    cables.push(Cable { ends, link });
                }
            }
        }
        Self {
            name: "fat tree",
            nodes: Some(node),
            switches: vec![switch; (2 * edges + cores) as usize],
            cables,
        }
    }

    /// Distances in cables from every switch to `node`, by switch.
    pub(super) fn distances(&self, node: NodeId) -> Vec<u32> {
        let mut far = vec![u32::MAX; self.switches.len()];
        let mut queue = VecDeque::new();
        let mut neighbours = vec![Vec::new(); self.switches.len()];
        for cable in &self.cables {
            match cable.ends {
                [End::Switch(a), End::Switch(b)] => {
                    neighbours[a as usize].push(b);
                    neighbours[b as usize].push(a);
                }
                [End::Node(end), End::Switch(switch)] | [End::Switch(switch), End::Node(end)]
                    if end == node =>
                {
                    far[switch as usize] = 1;
                    queue.push_back(switch);
                }
                _ => {}
            }
        }
        while let Some(switch) = queue.pop_front() {
            let distance = far[switch as usize] + 1;
            for &next in &neighbours[switch as usize] {
                if far[next as usize] > distance {
                    far[next as usize] = distance;
                    queue.push_back(next);
                }
            }
        }
        far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degree(topology: &Topology, end: End) -> usize {
        let ends = topology.cables.iter().flat_map(|cable| cable.ends);
        ends.filter(|other| *other == end).count()
    }

    #[test]
    fn the_papers_cluster_has_its_size() {
        let cx4 = Topology::cx4(SwitchConfig::default());
        assert_eq!((cx4.nodes, cx4.switches.len()), (Some(100), 6));
        assert_eq!(degree(&cx4, End::Switch(5)), 25, "five uplinks a rack");
        assert_eq!(degree(&cx4, End::Switch(1)), 27 + 5);
        assert!((0..100).all(|node| degree(&cx4, End::Node(NodeId(node))) == 1));
        let far = cx4.distances(NodeId(0));
        assert_eq!(far, [1, 3, 3, 3, 3, 2]);
        let small = Topology::cx4_with(21, SwitchConfig::default());
        assert_eq!(small.nodes, Some(21));
        let large = Topology::cx4_with(101, SwitchConfig::default());
        assert_eq!(large.nodes, Some(101));
        assert_eq!(degree(&large, End::Switch(0)), 21 + 5);
    }

    #[test]
    fn a_fat_tree_has_the_right_number_of_paths() {
        let tree = Topology::fat_tree(4, LinkConfig::default(), SwitchConfig::default());
        assert_eq!((tree.nodes, tree.switches.len()), (Some(16), 20));
        assert!((0..20).all(|switch| degree(&tree, End::Switch(switch)) == 4));
        let far = tree.distances(NodeId(0));
        // The edge, its pod's aggregation, the core, and the other pods.
        let count = |distance| far.iter().filter(|&&d| d == distance).count();
        assert_eq!([1, 2, 3, 4, 5].map(count), [1, 2, 5, 6, 6]);
    }
}
