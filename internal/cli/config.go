package cli

import (
	"fmt"

	"github.com/warmroute/warmroute/internal/config"
)

// ConfigCmd groups the commands about the configuration file.
type ConfigCmd struct {
	Check  ConfigCheckCmd  `cmd:"" help:"List all faults of a file, or say that there are none."`
	Print  ConfigPrintCmd  `cmd:"" help:"Print what a file comes to, defaults included and secrets masked."`
	Schema ConfigSchemaCmd `cmd:"" help:"Print the JSON Schema of the file, for editors."`
}

// ConfigCheckCmd lists the faults of a file.
type ConfigCheckCmd struct {
	File string `arg:"" help:"Configuration file."`
}

// Run implements the command.
func (c *ConfigCheckCmd) Run(env *Env) error {
	cfg, err := config.Load(c.File)
	if err != nil {
		return report(env, err)
	}
	for _, w := range cfg.Warnings() {
		fmt.Fprintf(env.Stderr, "%s: warning: %s\n", c.File, w)
	}
	_, err = fmt.Fprintf(env.Stdout, "%s: ok\n", c.File)
	return err
}

// ConfigPrintCmd prints the configuration in force.
type ConfigPrintCmd struct {
	File string `arg:"" optional:"" help:"Configuration file. Without one, the defaults are printed."`
}

// Run implements the command.
func (c *ConfigPrintCmd) Run(env *Env) error {
	defaults := config.Default()
	cfg := &defaults
	if c.File != "" {
		var err error
		if cfg, err = config.Load(c.File); err != nil {
			return report(env, err)
		}
	}
	text, err := cfg.Dump()
	if err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	_, err = env.Stdout.Write(text)
	return err
}

// ConfigSchemaCmd prints the JSON Schema.
type ConfigSchemaCmd struct{}

// Run implements the command.
func (ConfigSchemaCmd) Run(env *Env) error {
	_, err := env.Stdout.Write(config.Schema())
	return err
}
