package bench

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Spec is a workload as written on a command line: a name and parameters that
// differ from its defaults, "rag" or "rag:prefixes=300,zipf=1.2".
type Spec struct {
	name   string
	kind   specKind
	values map[string]float64
}

// specKind is a workload that can be named.
type specKind struct {
	about    string
	defaults map[string]float64
	// rate is what a rate means to it.
	rate string
	make func(v map[string]float64, rate float64, length time.Duration) Workload
}

// SpecNames lists the workloads that [ParseSpec] knows.
func SpecNames() []string { return slices.Sorted(maps.Keys(specKinds)) }

// SpecHelp describes a workload: what it is, what a rate means to it, and its
// parameters with their defaults.
func SpecHelp(name string) string {
	k := specKinds[name]
	var parameters []string
	for _, key := range slices.Sorted(maps.Keys(k.defaults)) {
		parameters = append(parameters, fmt.Sprintf("%s=%g", key, k.defaults[key]))
	}
	return fmt.Sprintf("%s; rate: %s; %s", k.about, k.rate, strings.Join(parameters, ","))
}

// ParseSpec reads a workload.
func ParseSpec(text string) (*Spec, error) {
	name, parameters, _ := strings.Cut(text, ":")
	kind, ok := specKinds[name]
	if !ok {
		return nil, fmt.Errorf("workload %q: want one of %s", name, strings.Join(SpecNames(), ", "))
	}
	s := &Spec{name: name, kind: kind, values: maps.Clone(kind.defaults)}
	for p := range strings.SplitSeq(parameters, ",") {
		if p == "" {
			continue
		}
		key, value, _ := strings.Cut(p, "=")
		if _, ok := s.values[key]; !ok {
			return nil, fmt.Errorf("workload %s: no parameter %q; there are %s", name, key, strings.Join(slices.Sorted(maps.Keys(s.values)), ", "))
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= 0 && v <= 1e9) {
			return nil, fmt.Errorf("workload %s: %s %q: want a number from 0 to 1e9", name, key, value)
		}
		s.values[key] = v
	}
	for _, key := range []string{"prefixes", "groups", "prompts", "tokens"} {
		if v, ok := s.values[key]; ok && v < 1 {
			return nil, fmt.Errorf("workload %s: %s %g: want at least 1", name, key, v)
		}
	}
	return s, nil
}

// DefaultRate is the rate that is used where none is given, for a number of
// instances.
func (s *Spec) DefaultRate(instances int) float64 { return s.values["rate"] * float64(instances) }

// Workload makes the workload at a rate, so many requests that arrivals last
// about so long.
func (s *Spec) Workload(rate float64, length time.Duration) Workload {
	return s.kind.make(s.values, rate, length)
}

// requests is the number of arrivals in a time.
func requests(rate float64, length time.Duration) int { return max(int(rate*length.Seconds()+0.5), 1) }

// spread is uniform over half to one and a half times a mean.
func spread(mean float64) Length { return Between(int(mean/2), int(mean*3/2)) }

// specKinds are the workloads by name.
var specKinds = map[string]specKind{
	"rag":               ragSpec,
	"prefix-repetition": prefixRepetitionSpec,
	"groups":            groupsSpec,
	"chat":              chatSpec,
	"agents":            agentsSpec,
	"mixed":             mixedSpec,
}

var ragSpec = specKind{
	about: "documents by Zipf popularity, questions of their own", rate: "requests/s",
	defaults: map[string]float64{"rate": 2, "prefixes": 200, "tokens": 8000, "zipf": 1, "system": 40, "tail": 150, "output": 200},
	make: func(v map[string]float64, rate float64, length time.Duration) Workload {
		return RAG{
			Requests: requests(rate, length), Rate: rate, Prefixes: int(v["prefixes"]), PrefixTokens: int(v["tokens"]), Zipf: v["zipf"],
			SystemTokens: int(v["system"]), Tail: spread(v["tail"]), Output: spread(v["output"]),
		}
	},
}

var prefixRepetitionSpec = specKind{
	about: "vLLM's prefix_repetition: a number of prefixes, suffixes always new", rate: "requests/s",
	defaults: map[string]float64{"rate": 4, "prefixes": 64, "tokens": 4000, "suffix": 512, "output": 128},
	make: func(v map[string]float64, rate float64, length time.Duration) Workload {
		return Groups{
			Requests: requests(rate, length), Rate: rate, Groups: int(v["prefixes"]), Prompts: 1, PrefixTokens: int(v["tokens"]),
			QuestionTokens: Fixed(int(v["suffix"])), Output: Fixed(int(v["output"])), Fresh: true,
		}
	},
}

var groupsSpec = specKind{
	about: "llm-d's and SGLang's shared prefixes: groups x prompts, asked again in every pass", rate: "requests/s",
	defaults: map[string]float64{"rate": 2, "groups": 150, "prompts": 5, "tokens": 6000, "question": 1200, "output": 1000},
	make: func(v map[string]float64, rate float64, length time.Duration) Workload {
		return Groups{
			Requests: requests(rate, length), Rate: rate, Groups: int(v["groups"]), Prompts: int(v["prompts"]), PrefixTokens: int(v["tokens"]),
			QuestionTokens: Fixed(int(v["question"])), Output: Fixed(int(v["output"])),
		}
	},
}

var chatSpec = specKind{
	about: "conversations with pauses for thought; answers are fed back", rate: "conversations started/s",
	defaults: map[string]float64{"rate": 1, "groups": 4, "system": 1500, "turns": 7, "user": 250, "output": 250, "think": 15},
	make: func(v map[string]float64, rate float64, length time.Duration) Workload {
		w := chat(requests(rate, length), rate)
		w.Groups, w.SystemTokens, w.Turns = int(v["groups"]), int(v["system"]), spread(v["turns"])
		w.User.Mean, w.Output.Mean, w.Think = v["user"], v["output"], seconds(v["think"])
		return w
	},
}

var agentsSpec = specKind{
	about: "agents that call tools, grow their context and fork; a closed loop", rate: "agents at work",
	defaults: map[string]float64{
		"rate": 10, "kinds": 3, "system": 6000, "task": 2500, "steps": 15, "tool": 1200, "output": 220, "pause": 4, "fork": 0.12, "branches": 3,
	},
	make: func(v map[string]float64, rate float64, length time.Duration) Workload {
		users := max(int(rate+0.5), 1)
		// A step takes its pause and a few seconds of the engine.
		tasks := int(float64(users) * length.Seconds() / (v["steps"] * (v["pause"] + engineSeconds)))
		w := agents(max(tasks, users), users)
		w.Kinds, w.SystemTokens, w.Steps, w.Pause = int(v["kinds"]), int(v["system"]), spread(v["steps"]), seconds(v["pause"])
		w.Task.Mean, w.Tool.Mean, w.Output.Mean, w.Fork, w.Branches = v["task"], v["tool"], v["output"], v["fork"], int(v["branches"])
		return w
	},
}

var mixedSpec = specKind{
	about: "documents, conversations and agents together", rate: "requests/s of documents; a sixth of it in conversations, thrice in agents",
	defaults: map[string]float64{"rate": 1.25, "prefixes": 150, "tokens": 8000, "zipf": 0.8},
	make: func(v map[string]float64, rate float64, length time.Duration) Workload {
		documents := maps.Clone(ragSpec.defaults)
		maps.Copy(documents, v)
		return Mixed{
			ragSpec.make(documents, rate, length),
			chatSpec.make(chatSpec.defaults, rate/6, length),
			agentsSpec.make(agentsSpec.defaults, 3*rate, length),
		}
	},
}

// engineSeconds is about how long an engine takes for a step of an agent.
const engineSeconds = 5
